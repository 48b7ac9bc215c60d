//! Titles from file names, and the order in which a shelf shows them.
//!
//! A name written by a person is left as it is. A name written by a release tool (dots or underscores where
//! spaces belong) is unfolded, keeps its year and loses what describes the encoding.

use crate::name::{hex, is_invisible};

/// The longest title, in characters.
const MAX_CHARS: usize = 200;
/// The longest order key before it is written as hexadecimal digits, in bytes.
const MAX_KEY: usize = 96;

/// The title of the file called `name`. Never empty.
pub(crate) fn title_of(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let clean: String = text
        .chars()
        .filter(|c| !is_invisible(*c))
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let stem = without_suffix(clean.trim());
    let spaces = stem.matches(' ').count();
    let folded = stem.matches('_').count() > spaces || joining_dots(stem) > spaces;
    let title = match folded {
        true => unfold(stem),
        false => join(stem.split_whitespace()),
    };
    let title = match title.chars().any(char::is_alphanumeric) {
        true => title,
        false => crate::name::shown(name),
    };
    title.chars().take(MAX_CHARS).collect()
}

/// A key whose order as plain text, in any database's collation, is the order for people: numbers by their
/// value, letters whatever their case or accent, leading punctuation ignored.
pub(crate) fn order_key(title: &str) -> String {
    let start = title.find(char::is_alphanumeric).unwrap_or(0);
    let mut key = Vec::with_capacity(MAX_KEY);
    let mut rest = title[start..].chars().peekable();
    while let Some(c) = rest.next() {
        if key.len() >= MAX_KEY {
            break;
        }
        if let Some(first) = c.to_digit(10) {
            let mut digits = vec![first as u8];
            while let Some(next) = rest.peek().and_then(|c| c.to_digit(10)) {
                digits.push(next as u8);
                rest.next();
            }
            let zeros = digits
                .iter()
                .take_while(|d| **d == 0)
                .count()
                .min(digits.len() - 1);
            let digits = &digits[zeros..];
            key.push(b'0');
            key.push(u8::try_from(digits.len()).unwrap_or(u8::MAX));
            key.extend(digits.iter().map(|d| b'0' + d));
            continue;
        }
        for c in c.to_lowercase() {
            let mut buffer = [0; 4];
            key.extend_from_slice(plain(c).encode_utf8(&mut buffer).as_bytes());
        }
    }
    key.truncate(MAX_KEY);
    hex(&key)
}

/// The letter below a common accent.
fn plain(c: char) -> char {
    match c {
        'à'..='å' | 'ā' | 'ă' | 'ą' => 'a',
        'ç' | 'ć' | 'č' => 'c',
        'ď' | 'đ' => 'd',
        'è'..='ë' | 'ē' | 'ė' | 'ę' | 'ě' => 'e',
        'ì'..='ï' | 'ī' | 'į' => 'i',
        'ł' => 'l',
        'ñ' | 'ń' | 'ň' => 'n',
        'ò'..='ö' | 'ø' | 'ō' | 'ő' => 'o',
        'ř' => 'r',
        'ś' | 'š' | 'ş' => 's',
        'ť' => 't',
        'ù'..='ü' | 'ū' | 'ů' | 'ű' => 'u',
        'ý' | 'ÿ' => 'y',
        'ź' | 'ż' | 'ž' => 'z',
        c => c,
    }
}

/// Drops `.mkv` and its like; `.2010` and `. Nobody` are part of a name.
fn without_suffix(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((stem, suffix))
            if !stem.trim().is_empty()
                && (2..=5).contains(&suffix.len())
                && suffix.chars().all(|c| c.is_ascii_alphanumeric())
                && suffix.chars().any(|c| c.is_ascii_alphabetic())
                && !is_year(suffix) =>
        {
            stem
        }
        _ => name,
    }
}

/// Dots that stand between two words.
fn joining_dots(stem: &str) -> usize {
    let parts: Vec<&str> = stem.split('.').collect();
    parts
        .windows(2)
        .filter(|pair| {
            pair.iter()
                .all(|p| !p.is_empty() && !p.starts_with(' ') && !p.ends_with(' '))
        })
        .count()
}

fn unfold(stem: &str) -> String {
    let spaced = stem.replace('_', " ");
    let mut words: Vec<String> = Vec::new();
    for part in spaced.split_whitespace() {
        let mut last_joins = false;
        for piece in part.split('.').filter(|p| !p.is_empty()) {
            match words.last_mut() {
                // "5.1" and "S.W.A.T" belong together; "Film.2.2010" does not.
                Some(before) if last_joins && keeps_dot(before, piece) => {
                    before.push('.');
                    before.push_str(piece);
                }
                _ => words.push(piece.to_owned()),
            }
            last_joins = true;
        }
    }
    let year = words.iter().rposition(|w| is_year(bare(w))).filter(|at| *at > 0);
    let cut = words
        .iter()
        .skip(1)
        .position(|w| is_release_word(w))
        .map(|at| at + 1);
    match (year, cut) {
        (Some(year), cut) if cut.is_none_or(|cut| year < cut) => {
            let followed = cut.unwrap_or(words.len()) > year + 1;
            let mut kept: Vec<String> = words[..year].to_vec();
            kept.push(format!("({})", bare(&words[year])));
            if followed {
                kept.extend_from_slice(&words[year + 1..cut.unwrap_or(words.len())]);
            }
            join(kept.iter().map(String::as_str))
        }
        (_, Some(cut)) => join(words[..cut].iter().map(String::as_str)),
        _ => join(words.iter().map(String::as_str)),
    }
}

fn keeps_dot(before: &str, piece: &str) -> bool {
    let tail = before.rsplit('.').next().unwrap_or(before);
    let letter = |s: &str| s.chars().count() == 1 && s.chars().all(char::is_alphabetic);
    let small = |s: &str| s.len() <= 2 && s.bytes().all(|b| b.is_ascii_digit());
    (letter(tail) && letter(piece)) || (small(tail) && small(piece))
}

fn bare(word: &str) -> &str {
    word.trim_matches(|c| matches!(c, '(' | ')' | '[' | ']'))
}

fn is_year(word: &str) -> bool {
    word.len() == 4
        && (word.starts_with("19") || word.starts_with("20"))
        && word.bytes().all(|b| b.is_ascii_digit())
}

/// Words that describe an encoding and begin the part of a name that is no title.
fn is_release_word(word: &str) -> bool {
    let word = bare(word).to_ascii_lowercase();
    let first = word.split('-').next().unwrap_or(&word);
    matches!(
        first,
        "480p"
            | "576p"
            | "720p"
            | "1080p"
            | "1080i"
            | "2160p"
            | "4k"
            | "uhd"
            | "bluray"
            | "bdrip"
            | "brrip"
            | "dvdrip"
            | "dvd"
            | "webrip"
            | "webdl"
            | "hdtv"
            | "remux"
            | "x264"
            | "x265"
            | "h264"
            | "h265"
            | "hevc"
            | "xvid"
            | "10bit"
            | "hdr"
            | "hdr10"
            | "aac"
            | "ac3"
            | "dts"
            | "ddp5"
    ) || word.starts_with("web-")
}

fn join<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_become_titles() {
        for (name, title) in [
            (
                "The.Big.Film.2010.1080p.BluRay.x264-GRP.mkv",
                "The Big Film (2010)",
            ),
            ("the_small_film_1999.mp4", "the small film (1999)"),
            ("Mr. Nobody (2009).mkv", "Mr. Nobody (2009)"),
            ("2001.A.Space.Odyssey.1968.mkv", "2001 A Space Odyssey (1968)"),
            ("1917.mkv", "1917"),
            ("S.W.A.T.2003.mkv", "S.W.A.T (2003)"),
            ("Concert.in.5.1.Surround.mkv", "Concert in 5.1 Surround"),
            ("Film.2.2010.720p.mkv", "Film 2 (2010)"),
            ("-rf.mkv", "-rf"),
            ("a 100% \"quoted\" name.mp4", "a 100% \"quoted\" name"),
            ("line\nbreak.mkv", "line break"),
            ("Amélie.2001.mkv", "Amélie (2001)"),
            ("h264-aac-vfr.mp4", "h264-aac-vfr"),
            ("no suffix", "no suffix"),
            ("Film.1984", "Film (1984)"),
            ("....mkv", "....mkv"),
            ("clip.m2ts", "clip"),
            ("Show_2021_Extended_Cut_1080p.mkv", "Show (2021) Extended Cut"),
        ] {
            assert_eq!(title_of(name.as_bytes()), title, "{name}");
        }
    }

    #[test]
    fn a_name_that_is_no_text_still_has_a_title() {
        assert_eq!(title_of(b"caf\xe9.mkv"), "caf\u{fffd}");
        assert_eq!(title_of(b"\xff\xfe"), "\\xff\\xfe");
    }

    #[test]
    fn the_shelf_is_in_the_order_people_expect() {
        let mut titles = vec![
            "Part 10", "élan", "Part 2", "part 1", "Zebra", "[Rec]", "Elbe", "007", "Part 02b",
        ];
        titles.sort_by_key(|t| order_key(t));
        assert_eq!(
            titles,
            [
                "007", "élan", "Elbe", "part 1", "Part 2", "Part 02b", "Part 10", "[Rec]", "Zebra"
            ]
        );
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_bounded_title_and_key(name in proptest::collection::vec(any::<u8>(), 0..300)) {
            let title = title_of(&name);
            prop_assert!(title.chars().count() <= MAX_CHARS);
            prop_assert!(!title.chars().any(char::is_control));
            let key = order_key(&title);
            prop_assert!(key.len() <= 2 * MAX_KEY);
            prop_assert!(key.bytes().all(|b| b.is_ascii_hexdigit()));
        }
    }
}
