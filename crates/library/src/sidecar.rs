//! Subtitle files beside films.
//!
//! Which file goes with which film is told by names, as other servers and players have it (Plex, Jellyfin, Kodi,
//! mpv): a file beside the film that begins with the film's name without its suffix, or one in a folder `Subs`,
//! `Subtitles` or `Sub` beside it: there too by the film's name, or in a folder of that name, or by any name where
//! the film is the only one beside that folder. What stands between, split at dots, says the language and the
//! kind: `film.en.forced.srt`, `Subs/2_English.srt`.

use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::catalog::KnownFile;
use crate::model::{SIDECARS_FROM, Sidecar};
use crate::name::{RelPath, shown};
use crate::open::{OpenError, whereabouts};
use crate::problem::Reason;
use crate::revision::Revision;
use crate::scan::{ScanError, Scanner};
use crate::sieve::{self, Sieved};
use crate::tree::{Entry, EntryKind, Root, absent};
use crate::watch::NoWatch;

/// How long a viewer who wants a film waits for the files beside it.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most files that one film has.
const MOST: usize = 128;
/// Most bytes of one; subtitles of a long film with every sign drawn have a tenth of it.
const LARGEST: u64 = 16 << 20;
/// Names of folders for subtitles, in lower case.
const FOLDERS: [&[u8]; 3] = [b"subs", b"subtitles", b"sub"];

/// The subtitle files of `known`.
pub(crate) async fn find(scanner: &Arc<Scanner>, known: &KnownFile) -> Result<Vec<Sidecar>, OpenError> {
    let (folder, _) = whereabouts(scanner, known).await?;
    let film = known.place.path.clone();
    let look = move || Root::open(&folder).and_then(|root| look(&root, &film));
    match scanner.on_disk(&known.place.folder, PATIENCE, look).await {
        // Playing the film says what is wrong with its directory.
        Ok(found) => Ok(found.unwrap_or_default()),
        Err(ScanError::Silent) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// The content of `sidecar`, which belongs to `known`.
pub(crate) async fn read(
    scanner: &Arc<Scanner>,
    known: &KnownFile,
    sidecar: &Sidecar,
) -> Result<Bytes, OpenError> {
    let (folder, _) = whereabouts(scanner, known).await?;
    let (path, before) = (sidecar.path.clone(), sidecar.revision);
    let name = || sidecar.path.to_string();
    let read = move || -> io::Result<Option<Vec<u8>>> {
        let (file, now) = Root::open(&folder)?.open_file(&path)?;
        if !now.same_file(&before) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        (&file).take(LARGEST + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LARGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let whole = Revision::of(&file)?.same_file(&before);
        Ok(whole.then_some(bytes))
    };
    match scanner.on_disk(&known.place.folder, PATIENCE, read).await {
        Ok(Ok(Some(bytes))) => Ok(bytes.into()),
        Ok(Ok(None)) => Err(OpenError::Changed { file: name() }),
        Ok(Err(error)) if absent(&error) => Err(OpenError::Gone { file: name() }),
        Ok(Err(error)) => Err(OpenError::Unreadable {
            file: name(),
            reason: Reason::from_io(&error),
        }),
        Err(ScanError::Silent) => Err(OpenError::Unreadable {
            file: name(),
            reason: Reason::Silent,
        }),
        Err(error) => Err(error.into()),
    }
}

fn look(root: &Root, film: &RelPath) -> io::Result<Vec<Sidecar>> {
    let beside = root.list(&film.parent().unwrap_or_default(), &NoWatch)?.entries;
    let stem = stem(film.name()).to_vec();
    let mut found: Vec<Sidecar> = beside.iter().filter_map(|entry| named(entry, &stem)).collect();
    // A folder may be a film's own; then its files need not be named after it.
    let films = beside.iter().filter(|entry| match &entry.kind {
        EntryKind::File(revision) => {
            let sieved = sieve::file(entry.path.name(), revision.size);
            sieved == Sieved::Candidate && self::stem(entry.path.name()) != stem
        }
        _ => false,
    });
    let alone = films.count() == 0;
    for folder in beside.iter().filter(|entry| is_folder(entry, &FOLDERS)) {
        let Ok(listing) = root.list(&folder.path, &NoWatch) else {
            continue;
        };
        for entry in &listing.entries {
            if let Some(sidecar) = named(entry, &stem) {
                found.push(sidecar);
            } else if is_folder(entry, &[&stem.to_ascii_lowercase()]) {
                let own = root.list(&entry.path, &NoWatch).map(|listing| listing.entries);
                found.extend(own.unwrap_or_default().iter().filter_map(any));
            } else if alone {
                found.extend(any(entry));
            }
        }
    }
    // A picture subtitle is two files, of which one looks like text.
    found.retain(|sidecar| {
        let pictures = |entry: &&Entry| {
            sieve::suffix(entry.path.name()).as_deref() == Some("idx")
                && self::stem(entry.path.name()) == self::stem(sidecar.path.name())
        };
        sidecar.suffix != "sub" || !beside.iter().any(|entry| pictures(&entry))
    });
    found.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| a.path.cmp(&b.path)));
    found.dedup_by(|a, b| a.path == b.path);
    found.truncate(MOST);
    number(&mut found);
    Ok(found)
}

fn is_folder(entry: &Entry, names: &[&[u8]]) -> bool {
    let name = entry.path.name().to_ascii_lowercase();
    matches!(entry.kind, EntryKind::Directory(_)) && names.contains(&name.as_slice())
}

/// A name without its suffix.
fn stem(name: &[u8]) -> &[u8] {
    let dot = name.iter().rposition(|b| *b == b'.');
    &name[..dot.unwrap_or(name.len())]
}

/// The entry as a subtitle file of the film whose name without its suffix is `film`.
fn named(entry: &Entry, film: &[u8]) -> Option<Sidecar> {
    let rest = stem(entry.path.name()).strip_prefix(film)?;
    if !rest.is_empty() && !rest.starts_with(b".") {
        return None;
    }
    sidecar(entry, rest)
}

/// The entry as a subtitle file, whatever its name.
fn any(entry: &Entry) -> Option<Sidecar> {
    sidecar(entry, stem(entry.path.name()))
}

fn sidecar(entry: &Entry, words: &[u8]) -> Option<Sidecar> {
    let EntryKind::File(revision) = entry.kind else {
        return None;
    };
    let name = entry.path.name();
    let suffix = sieve::suffix(name)?;
    let text = matches!(suffix.as_str(), "srt" | "vtt" | "ass" | "ssa" | "smi" | "sub");
    if !text || sieve::file(name, revision.size) != Sieved::Sidecar || revision.size == 0 {
        return None;
    }
    let told = Told::by(&shown(words));
    Some(Sidecar {
        number: 0,
        name: shown(name),
        suffix,
        language: told.language,
        title: (!told.title.is_empty()).then(|| told.title.join(" ")),
        forced: told.forced,
        hearing_impaired: told.hearing_impaired,
        revision,
        path: entry.path.clone(),
    })
}

/// Gives each file a number that follows from its name alone; where two have the same, the one that comes later
/// takes the next that is free.
fn number(sidecars: &mut [Sidecar]) {
    let mut taken = std::collections::BTreeSet::new();
    for sidecar in sidecars {
        let digest = Sha256::digest(sidecar.path.to_text().as_bytes());
        let hash = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        // Small enough for every kind of number that a client may have.
        let mut number = SIDECARS_FROM + (hash >> 2);
        while !taken.insert(number) {
            number += 1;
        }
        sidecar.number = number;
    }
}

/// What a name says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    language: Option<String>,
    forced: bool,
    hearing_impaired: bool,
    title: Vec<String>,
}

impl Told {
    fn by(words: &str) -> Self {
        let mut told = Self::default();
        for word in words
            .split(['.', '_', ' ', '(', ')', '[', ']'])
            .filter(|word| !word.is_empty())
        {
            match word.to_ascii_lowercase().as_str() {
                "forced" | "foreign" => told.forced = true,
                "sdh" | "cc" | "hi" if told.language.is_some() || word != "hi" => {
                    told.hearing_impaired = true
                }
                "default" | "full" => {}
                _ => match language(word) {
                    Some(language) if told.language.is_none() => told.language = Some(language),
                    // Numbers order such files; they tell nobody anything.
                    _ if word.bytes().all(|b| b.is_ascii_digit()) => {}
                    _ => told.title.push(word.to_owned()),
                },
            }
        }
        told
    }
}

/// The language that a word names: a code of ISO 639 with or without a region or script, or its English name.
fn language(word: &str) -> Option<String> {
    let lower = word.to_ascii_lowercase();
    let named = NAMES
        .iter()
        .find(|(name, _)| *name == lower)
        .map(|(_, code)| *code);
    if let Some(code) = named {
        return Some(code.to_owned());
    }
    let (code, rest) = lower
        .split_once('-')
        .map_or((lower.as_str(), None), |(code, rest)| (code, Some(rest)));
    let known = NAMES.iter().any(|(_, three)| *three == code) || CODES.split(' ').any(|known| known == code);
    let rest_fits = rest
        .is_none_or(|rest| (2..=8).contains(&rest.len()) && rest.bytes().all(|b| b.is_ascii_alphanumeric()));
    (known && rest_fits).then(|| word.to_owned())
}

/// English names of languages that subtitles are found in, and their codes in ISO 639-2.
const NAMES: [(&str, &str); 44] = [
    ("arabic", "ara"),
    ("basque", "baq"),
    ("bulgarian", "bul"),
    ("catalan", "cat"),
    ("chinese", "chi"),
    ("croatian", "hrv"),
    ("czech", "cze"),
    ("danish", "dan"),
    ("dutch", "dut"),
    ("english", "eng"),
    ("estonian", "est"),
    ("finnish", "fin"),
    ("french", "fre"),
    ("galician", "glg"),
    ("german", "ger"),
    ("greek", "gre"),
    ("hebrew", "heb"),
    ("hindi", "hin"),
    ("hungarian", "hun"),
    ("icelandic", "ice"),
    ("indonesian", "ind"),
    ("italian", "ita"),
    ("japanese", "jpn"),
    ("korean", "kor"),
    ("latvian", "lav"),
    ("lithuanian", "lit"),
    ("macedonian", "mac"),
    ("malay", "may"),
    ("norwegian", "nor"),
    ("persian", "per"),
    ("polish", "pol"),
    ("portuguese", "por"),
    ("romanian", "rum"),
    ("russian", "rus"),
    ("serbian", "srp"),
    ("slovak", "slo"),
    ("slovenian", "slv"),
    ("spanish", "spa"),
    ("swedish", "swe"),
    ("tamil", "tam"),
    ("thai", "tha"),
    ("turkish", "tur"),
    ("ukrainian", "ukr"),
    ("vietnamese", "vie"),
];

/// Codes of two letters, and those of three that the names above do not give.
const CODES: &str = "aa ab af ak am an ar as av ay az ba be bg bn bo br bs ca ce co cs cy da de el en eo es et eu fa \
    fi fo fr fy ga gd gl gu he hi hr ht hu hy id is it ja ka kk km kn ko ku ky la lb lo lt lv mg mi mk ml mn mr ms mt \
    my nb ne nl nn no oc pa pl ps pt ro ru sa sd si sk sl so sq sr sv sw ta te tg th ti tk tl tr tt ug uk ur uz vi yi \
    yo zh zu afr amh aze bel ben bos ces cmn cym deu ell eus fas fil fra geo gle guj hye isl kan kat kaz khm kur lat \
    mal mar mkd mon msa mya nld nob nno pan por ron slk sqi swa tel tgl urd uzb yue zho zul";

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, size: u64) -> Entry {
        let revision = Revision {
            size,
            mtime_ns: 0,
            inode: 1,
            device: 1,
        };
        Entry {
            path: RelPath::from_text(path).unwrap(),
            kind: EntryKind::File(revision),
        }
    }

    #[test]
    fn a_sidecar_belongs_to_the_film_whose_name_it_begins_with() {
        let of = |name: &str| named(&entry(name, 100), b"The Film").map(|found| found.suffix);
        assert_eq!(of("d/The Film.srt"), Some("srt".into()));
        assert_eq!(of("d/The Film.en.VTT"), Some("vtt".into()));
        assert_eq!(of("d/The Film 2.srt"), None);
        assert_eq!(of("d/The Film.mkv"), None);
        assert_eq!(of("d/The Film.nfo"), None);
        assert_eq!(of("d/.The Film.srt"), None);
        assert_eq!(named(&entry("The Film.srt", 0), b"The Film"), None);
    }

    #[test]
    fn names_say_language_and_kind() {
        let told = |words: &str| {
            let told = Told::by(words);
            (
                told.language,
                told.forced,
                told.hearing_impaired,
                told.title.join(" "),
            )
        };
        let some = |code: &str| Some(code.to_owned());
        assert_eq!(told(".en"), (some("en"), false, false, String::new()));
        assert_eq!(told(".en.forced"), (some("en"), true, false, String::new()));
        assert_eq!(told(".eng.sdh"), (some("eng"), false, true, String::new()));
        assert_eq!(told(".pt-BR"), (some("pt-BR"), false, false, String::new()));
        assert_eq!(
            told(".zh-Hans.default"),
            (some("zh-Hans"), false, false, String::new())
        );
        assert_eq!(told("2_English"), (some("eng"), false, false, String::new()));
        assert_eq!(told("English (SDH)"), (some("eng"), false, true, String::new()));
        // Hindi where nothing else says the language; else for the hard of hearing.
        assert_eq!(told(".hi"), (some("hi"), false, false, String::new()));
        assert_eq!(told(".en.hi"), (some("en"), false, true, String::new()));
        assert_eq!(
            told(".Directors Cut"),
            (None, false, false, "Directors Cut".to_owned())
        );
        assert_eq!(told(""), (None, false, false, String::new()));
    }

    #[test]
    fn numbers_follow_from_names_and_are_never_the_same() {
        let all = |names: &[&str]| {
            let mut found: Vec<Sidecar> = names.iter().filter_map(|n| any(&entry(n, 9))).collect();
            number(&mut found);
            found.iter().map(|sidecar| sidecar.number).collect::<Vec<_>>()
        };
        let (both, one) = (all(&["a.en.srt", "a.fr.srt"]), all(&["a.fr.srt"]));
        assert_eq!(both[1], one[0], "another file beside it changes nothing");
        assert!(both.iter().all(|number| *number >= SIDECARS_FROM));
        let twins = all(&["a.srt", "a.srt"]);
        assert_ne!(twins[0], twins[1]);
    }
}
