//! The text of an ASS line as runs of plain text with what WebVTT can follow of their looks.

use super::style::{Place, Style, Styles};

/// Looks of a run of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Looks {
    pub(super) bold: bool,
    pub(super) italic: bool,
    pub(super) underlined: bool,
}

/// A line taken apart.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) runs: Vec<(Looks, String)>,
    pub(super) place: Option<Place>,
}

/// Takes the text of a line apart. Drawings are left out, and so are comments where braces mark them.
pub(super) fn parse(text: &str, style: Style, styles: &Styles, comments: bool) -> Parsed {
    let base = Looks {
        italic: style.italic,
        ..Looks::default()
    };
    let mut reader = Reader {
        parsed: Parsed::default(),
        looks: base,
        base,
        style,
        styles,
        drawing: false,
    };
    let mut rest = text;
    while let Some(at) = rest.find(['{', '\\']) {
        reader.say(&rest[..at]);
        rest = &rest[at..];
        if let Some(inside) = rest.strip_prefix('{') {
            match inside.find('}') {
                Some(end) => {
                    let block = &inside[..end];
                    if block.contains('\\') {
                        reader.tags(block);
                    } else if !comments {
                        reader.say(&rest[..end + 2]);
                    }
                    rest = &inside[end + 1..];
                }
                // A brace that nothing closes is a brace.
                None => {
                    reader.say("{");
                    rest = inside;
                }
            }
            continue;
        }
        let mut after = rest[1..].chars();
        let spoken = match after.next() {
            Some('N') => "\n",
            Some('n') => " ",
            Some('h') => "\u{a0}",
            Some('{') => "{",
            Some('}') => "}",
            _ => {
                reader.say("\\");
                rest = &rest[1..];
                continue;
            }
        };
        reader.say(spoken);
        rest = after.as_str();
    }
    reader.say(rest);
    reader.parsed
}

struct Reader<'a> {
    parsed: Parsed,
    looks: Looks,
    /// What `\r` goes back to.
    base: Looks,
    style: Style,
    styles: &'a Styles,
    drawing: bool,
}

impl Reader<'_> {
    fn say(&mut self, text: &str) {
        if text.is_empty() || self.drawing {
            return;
        }
        match self.parsed.runs.last_mut() {
            Some((looks, said)) if *looks == self.looks => said.push_str(text),
            _ => self.parsed.runs.push((self.looks, text.to_owned())),
        }
    }

    fn tags(&mut self, block: &str) {
        for tag in block.split('\\').skip(1) {
            let tag = tag.trim();
            // What a transformation animates towards is not how the line looks now.
            if tag.starts_with("t(") {
                continue;
            }
            let switch = |name: &str| tag.strip_prefix(name)?.parse::<i64>().ok();
            if let Some(on) = switch("i") {
                self.looks.italic = on != 0;
            } else if let Some(weight) = switch("b") {
                self.looks.bold = weight == 1 || weight >= 600;
            } else if let Some(on) = switch("u") {
                self.looks.underlined = on != 0;
            } else if let Some(scale) = switch("p") {
                self.drawing = scale > 0;
            } else if let Some(number) = switch("an") {
                self.stand(u32::try_from(number).ok().and_then(Place::numpad));
            } else if let Some(number) = switch("a") {
                self.stand(u32::try_from(number).ok().and_then(Place::legacy));
            } else if let Some(point) = tag.strip_prefix("pos(").or_else(|| tag.strip_prefix("move(")) {
                let mut numbers = point.trim_end_matches(')').split(',');
                let y = numbers.nth(1).and_then(|y| y.trim().parse::<f64>().ok());
                if let Some(y) = y.filter(|y| y.is_finite()) {
                    let stands = self.parsed.place.unwrap_or(self.style.place);
                    self.parsed.place = Some(stands.at_height(y, self.styles.height));
                }
            } else {
                match tag {
                    "i" => self.looks.italic = self.base.italic,
                    "b" => self.looks.bold = self.base.bold,
                    "u" => self.looks.underlined = self.base.underlined,
                    _ => {
                        if let Some(name) = tag.strip_prefix('r') {
                            self.reset(name);
                        }
                    }
                }
            }
        }
    }

    /// The first word about where a line stands counts.
    fn stand(&mut self, place: Option<Place>) {
        self.parsed.place = self.parsed.place.or(place);
    }

    fn reset(&mut self, name: &str) {
        self.looks = match name {
            "" => self.base,
            name => Looks {
                italic: self.styles.get(name).italic,
                ..Looks::default()
            },
        };
    }
}
