//! Playlists read as a strict player reads them: what the rules do not allow fails the test.

/// A media playlist of a film that is whole.
#[derive(Debug)]
pub(crate) struct Media {
    pub(crate) target: u64,
    /// Address of the initialization segment.
    pub(crate) map: Option<String>,
    /// Where a player is asked to begin, in seconds.
    pub(crate) begin: Option<f64>,
    pub(crate) segments: Vec<Segment>,
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) seconds: f64,
    pub(crate) uri: String,
}

/// The one quality of a multivariant playlist.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    attributes: Vec<(String, String)>,
    /// Address of the sound's own playlist, where it comes apart from the picture.
    pub(crate) sound: Option<String>,
    /// Where a player is asked to begin, in seconds.
    pub(crate) begin: Option<f64>,
    pub(crate) uri: String,
}

impl Variant {
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

impl Media {
    /// Where segment `n` starts: the declared lengths before it.
    pub(crate) fn start(&self, n: usize) -> f64 {
        self.segments[..n].iter().map(|segment| segment.seconds).sum()
    }

    pub(crate) fn length(&self) -> f64 {
        self.start(self.segments.len())
    }
}

/// Reads a multivariant playlist with one quality.
pub(crate) fn variant(text: &str) -> Variant {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("#EXTM3U"));
    let (mut attributes, mut uri, mut begin, mut sound) = (None, None, None, None);
    for line in lines {
        if let Some(list) = line.strip_prefix("#EXT-X-MEDIA:TYPE=AUDIO,") {
            assert!(
                sound.replace(attribute(list, "URI")).is_none(),
                "one sound: {text}"
            );
        } else if let Some(list) = line.strip_prefix("#EXT-X-STREAM-INF:") {
            assert!(attributes.replace(split(list)).is_none(), "one quality: {text}");
        } else if let Some(list) = line.strip_prefix("#EXT-X-START:") {
            let offset = attribute(list, "TIME-OFFSET").parse().unwrap();
            assert!(begin.replace(offset).is_none(), "two beginnings: {text}");
        } else if line.starts_with('#') {
            let known = [
                "#EXT-X-VERSION:",
                "#EXT-X-INDEPENDENT-SEGMENTS",
                "#EXT-X-MEDIA:TYPE=SUBTITLES,",
            ];
            assert!(
                known.iter().any(|tag| line.starts_with(tag)),
                "unexpected {line:?}"
            );
        } else {
            assert!(
                attributes.is_some() && uri.replace(line.to_owned()).is_none(),
                "stray address {line:?}"
            );
        }
    }
    let (attributes, uri) = (attributes.expect("a quality"), uri.expect("its address"));
    let variant = Variant {
        attributes,
        sound,
        begin,
        uri,
    };
    assert_eq!(
        variant.sound.is_some(),
        variant.attribute("AUDIO").is_some(),
        "a sound apart is named by the quality that it belongs to: {text}"
    );
    let bandwidth = variant
        .attribute("BANDWIDTH")
        .and_then(|value| value.parse::<u64>().ok());
    assert!(
        bandwidth.is_some_and(|value| value > 0),
        "BANDWIDTH is required: {text}"
    );
    variant
}

/// Reads a media playlist.
pub(crate) fn media(text: &str) -> Media {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("#EXTM3U"));
    let (mut version, mut target, mut sequence, mut kind) = (None, None, None, None);
    let (mut map, mut begin, mut length, mut ended) = (None, None, None, false);
    let mut segments: Vec<Segment> = Vec::new();
    for line in lines {
        assert!(!ended, "something follows the end: {line:?}");
        let (tag, value) = line
            .split_once(':')
            .filter(|_| line.starts_with('#'))
            .unwrap_or((line, ""));
        let once = |slot: &mut Option<String>| {
            assert!(slot.replace(value.to_owned()).is_none(), "{tag} stands twice");
            assert!(segments.is_empty(), "{tag} comes after a segment");
        };
        match tag {
            "#EXT-X-VERSION" => once(&mut version),
            "#EXT-X-TARGETDURATION" => once(&mut target),
            "#EXT-X-MEDIA-SEQUENCE" => once(&mut sequence),
            "#EXT-X-PLAYLIST-TYPE" => once(&mut kind),
            "#EXT-X-MAP" => once(&mut map),
            "#EXT-X-START" => once(&mut begin),
            "#EXT-X-INDEPENDENT-SEGMENTS" => {}
            "#EXTINF" => {
                let seconds = value
                    .strip_suffix(',')
                    .expect("a comma ends the length")
                    .parse::<f64>()
                    .unwrap();
                assert!(seconds > 0.0, "an empty segment: {line:?}");
                assert!(length.replace(seconds).is_none(), "a length without a segment");
            }
            "#EXT-X-ENDLIST" => ended = true,
            _ if line.starts_with('#') || line.is_empty() => panic!("unexpected {line:?}"),
            _ => segments.push(Segment {
                seconds: length.take().expect("a length"),
                uri: line.to_owned(),
            }),
        }
    }
    assert!(ended, "the list has no end");
    assert_eq!((kind.as_deref(), sequence.as_deref()), (Some("VOD"), Some("0")));
    let version: u64 = version.expect("a version").parse().unwrap();
    assert!(
        version >= if map.is_some() { 6 } else { 3 },
        "version {version} lacks what the list uses"
    );
    let target: u64 = target.expect("a target duration").parse().unwrap();
    let longest = segments
        .iter()
        .map(|segment| segment.seconds.round())
        .fold(0.0, f64::max);
    assert_eq!(
        target as f64,
        longest.max(1.0),
        "the target duration is that of the longest segment"
    );
    let mut addresses: Vec<_> = segments.iter().map(|segment| &segment.uri).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), segments.len(), "an address stands twice");
    let map = map.map(|list| attribute(&list, "URI"));
    let begin = begin.map(|list| attribute(&list, "TIME-OFFSET").parse().unwrap());
    Media {
        target,
        map,
        begin,
        segments,
    }
}

fn attribute(list: &str, name: &str) -> String {
    let found = split(list).into_iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("no {name} in {list:?}")).1
}

/// Splits an attribute list; commas in quotes are none.
pub(crate) fn split(list: &str) -> Vec<(String, String)> {
    let (mut pairs, mut rest) = (Vec::new(), list);
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=').expect("a value");
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => {
                let (value, after) = quoted.split_once('"').expect("a closing quote");
                (value, after.strip_prefix(',').unwrap_or(after))
            }
            None => after.split_once(',').unwrap_or((after, "")),
        };
        pairs.push((name.to_owned(), value.to_owned()));
        rest = after;
    }
    pairs
}
