//! The styles of an ASS script, as far as WebVTT can follow them: where lines stand, and whether they lean.

use std::collections::HashMap;

/// Most styles that are kept of one script.
const MOST: usize = 4_096;

/// Where a line stands, by the keys of a number pad: 1 to 3 below, 4 to 6 in the middle, 7 to 9 above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u8);

impl Place {
    /// Below, in the middle: where WebVTT puts what says nothing.
    pub(super) const USUAL: Place = Place(2);

    /// The place that `\an` or a style of version 4+ names.
    pub(super) fn numpad(number: u32) -> Option<Self> {
        u8::try_from(number)
            .ok()
            .filter(|n| (1..=9).contains(n))
            .map(Self)
    }

    /// The place that `\a` or a style of version 4 names: 1 to 3 below, 5 to 7 above, 9 to 11 in the middle.
    pub(super) fn legacy(number: u32) -> Option<Self> {
        let column = u8::try_from(number & 3).ok().filter(|column| *column > 0)?;
        match number {
            1..=3 => Some(Self(column)),
            5..=7 => Some(Self(column + 6)),
            9..=11 => Some(Self(column + 3)),
            _ => None,
        }
    }

    /// The place in the row that `y` of `height` lies in, in this one's column.
    pub(super) fn at_height(self, y: f64, height: f64) -> Self {
        let column = (self.0 - 1) % 3 + 1;
        match y / height {
            part if part < 1.0 / 3.0 => Self(column + 6),
            part if part < 2.0 / 3.0 => Self(column + 3),
            _ => Self(column),
        }
    }

    /// The settings of a WebVTT cue that stands there; empty where these are the usual ones.
    pub(super) fn settings(self) -> &'static str {
        match self.0 {
            1 => "position:0% align:start",
            3 => "position:100% align:end",
            4 => "line:50% position:0% align:start",
            5 => "line:50%",
            6 => "line:50% position:100% align:end",
            7 => "line:0 position:0% align:start",
            8 => "line:0",
            9 => "line:0 position:100% align:end",
            _ => "",
        }
    }
}

/// One style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) place: Place,
    pub(super) italic: bool,
}

impl Style {
    pub(super) const USUAL: Style = Style {
        place: Place::USUAL,
        italic: false,
    };
}

/// What a script's header says.
#[derive(Clone, Debug)]
pub(super) struct Styles {
    named: HashMap<String, Style>,
    /// Height of the canvas that positions are given on.
    pub(super) height: f64,
}

impl Styles {
    pub(super) fn of(header: &str) -> Self {
        let mut styles = Styles {
            named: HashMap::new(),
            height: 288.0,
        };
        let mut legacy = false;
        let mut columns: Vec<String> = Vec::new();
        for line in header.lines() {
            let line = line.trim();
            if line.starts_with('[') {
                legacy = line.eq_ignore_ascii_case("[v4 styles]");
                continue;
            }
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            match key.trim() {
                "PlayResY" => {
                    let height = value.trim().parse().ok();
                    styles.height = height.filter(|height| *height > 0.0).unwrap_or(styles.height);
                }
                "Format" => {
                    columns = value
                        .split(',')
                        .map(|name| name.trim().to_ascii_lowercase())
                        .collect();
                }
                "Style" if styles.named.len() < MOST => {
                    let values: Vec<&str> = value.split(',').map(str::trim).collect();
                    let column = |name: &str| {
                        let at = columns.iter().position(|column| column == name)?;
                        values.get(at).copied()
                    };
                    let number = |name: &str| column(name)?.parse::<i64>().ok();
                    let place = number("alignment").and_then(|n| u32::try_from(n).ok());
                    let place = place.and_then(if legacy { Place::legacy } else { Place::numpad });
                    let style = Style {
                        place: place.unwrap_or(Place::USUAL),
                        italic: number("italic").is_some_and(|italic| italic != 0),
                    };
                    if let Some(name) = column("name") {
                        styles.named.insert(bare(name).to_owned(), style);
                    }
                }
                _ => {}
            }
        }
        styles
    }

    /// The style of this name; the default one where there is none.
    pub(super) fn get(&self, name: &str) -> Style {
        let named = self.named.get(bare(name)).or_else(|| self.named.get("Default"));
        named.copied().unwrap_or(Style::USUAL)
    }
}

/// Old scripts mark styles of their own with an asterisk.
fn bare(name: &str) -> &str {
    name.trim().trim_start_matches('*')
}
