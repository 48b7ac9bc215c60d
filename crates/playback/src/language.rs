//! Languages as players name them.
//!
//! Files name languages by the three letters of ISO 639-2, players by the shortest tag of BCP 47, which has two
//! letters where ISO 639-1 gives them.

/// ISO 639-2 (both the terminological and the bibliographic code) and ISO 639-1 of each language that has both.
const CODES: &str = "aar aa abk ab afr af aka ak alb sq sqi sq amh am ara ar arg an arm hy hye hy asm as ava av \
    ave ae aym ay aze az bak ba bam bm baq eu eus eu bel be ben bn bis bi bos bs bre br bul bg bur my mya my \
    cat ca cha ch che ce chi zh zho zh chu cu chv cv cor kw cos co cre cr cze cs ces cs dan da div dv dut nl nld nl \
    dzo dz eng en epo eo est et ewe ee fao fo fij fj fin fi fre fr fra fr fry fy ful ff geo ka kat ka ger de deu de \
    gla gd gle ga glg gl glv gv gre el ell el grn gn guj gu hat ht hau ha heb he her hz hin hi hmo ho hrv hr hun hu \
    ibo ig ice is isl is ido io iii ii iku iu ile ie ina ia ind id ipk ik ita it jav jv jpn ja kal kl kan kn kas ks \
    kau kr kaz kk khm km kik ki kin rw kir ky kom kv kon kg kor ko kua kj kur ku lao lo lat la lav lv lim li lin ln \
    lit lt ltz lb lub lu lug lg mac mk mkd mk mah mh mal ml mao mi mri mi mar mr may ms msa ms mlg mg mlt mt mon mn \
    nau na nav nv nbl nr nde nd ndo ng nep ne nno nn nob nb nor no nya ny oci oc oji oj ori or orm om oss os pan pa \
    per fa fas fa pli pi pol pl por pt pus ps que qu roh rm rum ro ron ro run rn rus ru sag sg san sa sin si \
    slo sk slk sk slv sl sme se smo sm sna sn snd sd som so sot st spa es srd sc srp sr ssw ss sun su swa sw swe sv \
    tah ty tam ta tat tt tel te tgk tg tgl tl tha th tib bo bod bo tir ti ton to tsn tn tso ts tuk tk tur tr twi tw \
    uig ug ukr uk urd ur uzb uz ven ve vie vi vol vo wel cy cym cy wln wa wol wo xho xh yid yi yor yo zha za zul zu";

/// The longest tag that is passed on.
const LONGEST: usize = 35;

/// The BCP 47 tag of a language as a file names it; `None` where that is no language's name or says that it is
/// not known. Tags that are BCP 47 already pass.
pub fn tag(name: &str) -> Option<String> {
    let name = name.trim().replace('_', "-");
    let part = |part: &str| (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric());
    if name.len() > LONGEST || !name.split('-').all(part) {
        return None;
    }
    let (language, rest) = match name.split_once('-') {
        Some((language, rest)) => (language, Some(rest)),
        None => (name.as_str(), None),
    };
    let language = language.to_ascii_lowercase();
    let letters = language.bytes().all(|b| b.is_ascii_lowercase());
    if !letters || !(2..=3).contains(&language.len()) || matches!(language.as_str(), "und" | "zxx" | "mis") {
        return None;
    }
    let mut words = CODES.split_ascii_whitespace();
    let mut short = None;
    while let (Some(long), Some(code)) = (words.next(), words.next()) {
        if long == language {
            short = Some(code);
            break;
        }
    }
    let language = short.unwrap_or(&language);
    Some(match rest {
        Some(rest) => format!("{language}-{rest}"),
        None => language.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn codes_of_files_become_the_tags_of_players() {
        let pairs = [
            ("eng", "en"),
            ("ger", "de"),
            ("deu", "de"),
            ("GER", "de"),
            ("zul", "zu"),
            ("gsw", "gsw"),
            ("pt-BR", "pt-BR"),
            ("por-BR", "pt-BR"),
            ("zh_Hans", "zh-Hans"),
        ];
        for (file, player) in pairs {
            assert_eq!(tag(file).as_deref(), Some(player), "{file}");
        }
        for nothing in ["", "und", "zxx", "e", "english", "en\"", "12", "en--US"] {
            assert_eq!(tag(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn the_table_is_made_of_pairs() {
        let words: Vec<&str> = CODES.split_ascii_whitespace().collect();
        let (pairs, rest) = words.as_chunks::<2>();
        assert!(rest.is_empty());
        assert!(
            pairs
                .iter()
                .all(|[long, short]| long.len() == 3 && short.len() == 2)
        );
    }

    proptest! {
        #[test]
        fn any_name_gives_a_tag_that_needs_no_escaping(name in "\\PC{0,40}") {
            if let Some(tag) = tag(&name) {
                prop_assert!(tag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'));
            }
        }
    }
}
