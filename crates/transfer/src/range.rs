//! What a request's conditions and ranges ask of a resource, and the head of its answer: pure functions, so that every
//! file, segment, playlist and picture answers alike (RFC 9110, sections 13 and 14).

use std::ops::Range;
use std::time::{Duration, SystemTime};

use ether_types::Timestamp;
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

/// What conditions are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entity<'a> {
    /// Bytes.
    pub len: u64,
    /// Strong tag without quotes.
    pub etag: &'a str,
    /// When it was last modified; shown to clients.
    pub modified: Option<Timestamp>,
    /// Whether other bytes always have another date: only then do dates count as conditions.
    pub dated: bool,
}

/// How to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All of it.
    Full,
    /// This part of it, never empty.
    Partial(Range<u64>),
    /// The client has it.
    NotModified,
    /// The client wanted another state of it.
    PreconditionFailed,
    /// No byte of the range exists.
    Unsatisfiable,
}

/// How a `method` request with `headers` is answered from `entity`.
pub fn answer(method: &Method, headers: &HeaderMap, entity: &Entity<'_>) -> Answer {
    let read = method == Method::GET || method == Method::HEAD;
    if let Some(tags) = joined(headers, &IF_MATCH) {
        if !tags_contain(&tags, entity.etag, Comparison::Strong) {
            return Answer::PreconditionFailed;
        }
    } else if let Some(since) = date(headers, &IF_UNMODIFIED_SINCE)
        && entity.dated
        && entity.modified.is_some_and(|modified| seconds(modified) > since)
    {
        return Answer::PreconditionFailed;
    }
    if let Some(tags) = joined(headers, &IF_NONE_MATCH) {
        if tags_contain(&tags, entity.etag, Comparison::Weak) {
            return if read {
                Answer::NotModified
            } else {
                Answer::PreconditionFailed
            };
        }
    } else if let Some(since) = date(headers, &IF_MODIFIED_SINCE)
        && read
        && entity.dated
        && entity.modified.is_some_and(|modified| seconds(modified) <= since)
    {
        return Answer::NotModified;
    }
    // A range is defined for GET alone; HEAD describes the whole.
    if method != Method::GET || !if_range_holds(headers, entity) {
        return Answer::Full;
    }
    let mut ranges = headers.get_all(RANGE).iter();
    let (Some(range), None) = (ranges.next(), ranges.next()) else {
        return Answer::Full;
    };
    match range.to_str().ok().and_then(single) {
        None => Answer::Full,
        Some(asked) => asked.of(entity.len),
    }
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// 200, 206, 304, 412 or 416.
    pub status: StatusCode,
    /// What describes the resource and, where it is sent, its body.
    pub headers: HeaderMap,
    /// The bytes that the body consists of; none for `HEAD`, and none for a refusal.
    pub body: Option<Range<u64>>,
}

/// The head of the answer to a `method` request with `headers`, for `entity` of the media type `content_type`.
pub fn head(method: &Method, headers: &HeaderMap, entity: &Entity<'_>, content_type: &str) -> Head {
    let len = entity.len;
    let (status, sent) = match answer(method, headers, entity) {
        Answer::Full => (StatusCode::OK, Some(0..len)),
        Answer::Partial(range) => (StatusCode::PARTIAL_CONTENT, Some(range)),
        Answer::NotModified => (StatusCode::NOT_MODIFIED, None),
        Answer::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, None),
        Answer::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, None),
    };
    let mut out = HeaderMap::new();
    set(&mut out, ETAG, &format!("\"{}\"", entity.etag));
    out.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(modified) = entity.modified {
        set(&mut out, LAST_MODIFIED, &http_date(modified));
    }
    if status == StatusCode::RANGE_NOT_SATISFIABLE {
        set(&mut out, CONTENT_RANGE, &format!("bytes */{len}"));
    }
    if let Some(range) = &sent {
        set(&mut out, CONTENT_TYPE, content_type);
        out.insert(CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
        if status == StatusCode::PARTIAL_CONTENT {
            let last = range.end.saturating_sub(1);
            set(
                &mut out,
                CONTENT_RANGE,
                &format!("bytes {}-{last}/{len}", range.start),
            );
        }
    }
    Head {
        status,
        headers: out,
        body: sent.filter(|_| method != Method::HEAD),
    }
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // Tags and types are made here of characters that a header may have.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// One byte range as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    From { first: u64, last: Option<u64> },
    Suffix { len: u64 },
}

impl Asked {
    fn of(self, len: u64) -> Answer {
        let range = match self {
            Self::From { first, last } => first..last.map_or(len, |last| last.saturating_add(1)).min(len),
            Self::Suffix { len: wanted } => len.saturating_sub(wanted)..len,
        };
        if range.start < range.end {
            Answer::Partial(range)
        } else {
            Answer::Unsatisfiable
        }
    }
}

/// Reads a header of exactly one byte range. Anything else, several ranges included, is to be ignored: the
/// whole is a right answer to every range, and one that costs bounded work.
fn single(text: &str) -> Option<Asked> {
    let (unit, set) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = set.trim().split_once('-')?;
    let (first, last) = (first.trim(), last.trim());
    match (first.is_empty(), last.is_empty()) {
        (true, true) => None,
        (true, false) => Some(Asked::Suffix { len: number(last)? }),
        (false, true) => Some(Asked::From {
            first: number(first)?,
            last: None,
        }),
        (false, false) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Asked::From {
                first,
                last: Some(last),
            })
        }
    }
}

/// A number of digits alone; one too large to hold is as good as the largest.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

fn if_range_holds(headers: &HeaderMap, entity: &Entity<'_>) -> bool {
    let Some(value) = headers.get(IF_RANGE) else {
        return true;
    };
    let Ok(value) = value.to_str() else {
        return false;
    };
    let value = value.trim();
    if value.starts_with('"') || value.starts_with("W/") {
        return tags_contain(value, entity.etag, Comparison::Strong);
    }
    // Only the very date that was sent vouches for the same bytes.
    let sent = httpdate::parse_http_date(value).ok();
    match (sent, entity.modified.filter(|_| entity.dated)) {
        (Some(sent), Some(modified)) => seconds(modified) == unix(sent),
        _ => false,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

/// Whether a list of entity tags, or `*`, names `etag`.
fn tags_contain(list: &str, etag: &str, comparison: Comparison) -> bool {
    if list.trim() == "*" {
        return true;
    }
    let mut rest = list;
    while let Some(at) = rest.find('"') {
        let weak = rest[..at].ends_with("W/");
        let Some(len) = rest[at + 1..].find('"') else {
            return false;
        };
        let tag = &rest[at + 1..at + 1 + len];
        if tag == etag && (comparison == Comparison::Weak || !weak) {
            return true;
        }
        rest = &rest[at + len + 2..];
    }
    false
}

/// All lines of a header as the one list that they mean.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let mut lines = headers.get_all(name).iter().peekable();
    lines.peek()?;
    let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    Some(lines.join(","))
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    let text = headers.get(name)?.to_str().ok()?;
    httpdate::parse_http_date(text).ok().map(unix)
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_micros().div_euclid(1_000_000)).unwrap_or(0)
}

/// A time as HTTP writes it; times before 1970 as 1970.
pub fn http_date(time: Timestamp) -> String {
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds(time)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2026-01-01T00:00:00Z and half a second.
    const MODIFIED: Timestamp = Timestamp::from_micros(1_767_225_600_500_000);
    const THAT_DATE: &str = "Thu, 01 Jan 2026 00:00:00 GMT";
    const DAY_BEFORE: &str = "Wed, 31 Dec 2025 00:00:00 GMT";

    fn entity(len: u64) -> Entity<'static> {
        Entity {
            len,
            etag: "x",
            modified: Some(MODIFIED),
            dated: true,
        }
    }

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.clone(), value.parse().unwrap()))
            .collect()
    }

    fn get(pairs: &[(HeaderName, &str)]) -> Answer {
        answer(&Method::GET, &headers(pairs), &entity(1_000))
    }

    fn range(text: &str) -> Answer {
        get(&[(RANGE, text)])
    }

    #[test]
    fn one_range_is_served_and_cut_at_the_end() {
        assert_eq!(get(&[]), Answer::Full);
        for (text, bytes) in [
            ("bytes=0-", 0..1_000),
            ("bytes=100-199", 100..200),
            ("bytes=-100", 900..1_000),
            ("bytes=900-5000", 900..1_000),
            ("bytes=-5000", 0..1_000),
            ("BYTES = 5 - 9", 5..10),
            ("bytes=0-99999999999999999999999", 0..1_000),
        ] {
            assert_eq!(range(text), Answer::Partial(bytes), "{text}");
        }
    }

    #[test]
    fn a_range_without_a_byte_is_not_satisfiable() {
        for text in ["bytes=1000-", "bytes=-0", "bytes=99999999999999999999999-"] {
            assert_eq!(range(text), Answer::Unsatisfiable, "{text}");
        }
        let empty = answer(&Method::GET, &headers(&[(RANGE, "bytes=0-")]), &entity(0));
        assert_eq!(empty, Answer::Unsatisfiable);
    }

    #[test]
    fn what_is_not_one_byte_range_is_ignored() {
        let thousand = format!("bytes={}", vec!["0-0"; 1_000].join(","));
        for text in [
            "bytes=5-2",
            "bytes=x",
            "items=0-1",
            "bytes=",
            "bytes=-",
            "bytes=0-0,5-9",
            "bytes=1-+2",
            &thousand,
        ] {
            assert_eq!(range(text), Answer::Full, "{text}");
        }
        let mut twice = headers(&[(RANGE, "bytes=0-1")]);
        twice.append(RANGE, "bytes=2-3".parse().unwrap());
        assert_eq!(answer(&Method::GET, &twice, &entity(1_000)), Answer::Full);
    }

    #[test]
    fn head_describes_the_whole() {
        let asked = headers(&[(RANGE, "bytes=0-9")]);
        assert_eq!(answer(&Method::HEAD, &asked, &entity(1_000)), Answer::Full);
    }

    #[test]
    fn if_range_lets_a_range_through_only_for_the_very_same_bytes() {
        let with = |value| get(&[(RANGE, "bytes=0-9"), (IF_RANGE, value)]);
        assert_eq!(with("\"x\""), Answer::Partial(0..10));
        assert_eq!(with(THAT_DATE), Answer::Partial(0..10));
        for other in [
            "\"y\"",
            "W/\"x\"",
            DAY_BEFORE,
            "Fri, 02 Jan 2026 00:00:00 GMT",
            "nonsense",
        ] {
            assert_eq!(with(other), Answer::Full, "{other}");
        }
    }

    #[test]
    fn dates_that_do_not_vouch_for_bytes_are_no_condition() {
        let undated = Entity {
            dated: false,
            ..entity(1_000)
        };
        let ask = |pairs: &[(HeaderName, &str)]| answer(&Method::GET, &headers(pairs), &undated);
        assert_eq!(ask(&[(RANGE, "bytes=0-9"), (IF_RANGE, THAT_DATE)]), Answer::Full);
        assert_eq!(ask(&[(IF_MODIFIED_SINCE, THAT_DATE)]), Answer::Full);
    }

    #[test]
    fn not_modified_beats_a_range_and_tags_beat_dates() {
        let range = (RANGE, "bytes=0-9");
        assert_eq!(
            get(&[(IF_NONE_MATCH, "\"x\""), range.clone()]),
            Answer::NotModified
        );
        assert_eq!(get(&[(IF_NONE_MATCH, "\"a\", W/\"x\"")]), Answer::NotModified);
        assert_eq!(get(&[(IF_NONE_MATCH, "*")]), Answer::NotModified);
        assert_eq!(
            get(&[(IF_NONE_MATCH, "\"y\""), (IF_MODIFIED_SINCE, THAT_DATE)]),
            Answer::Full
        );
        assert_eq!(get(&[(IF_MODIFIED_SINCE, THAT_DATE)]), Answer::NotModified);
        assert_eq!(get(&[(IF_MODIFIED_SINCE, DAY_BEFORE)]), Answer::Full);
    }

    #[test]
    fn a_wish_for_another_state_fails() {
        assert_eq!(get(&[(IF_MATCH, "\"y\"")]), Answer::PreconditionFailed);
        assert_eq!(get(&[(IF_MATCH, "W/\"x\"")]), Answer::PreconditionFailed);
        assert_eq!(get(&[(IF_MATCH, "\"y\", \"x\"")]), Answer::Full);
        assert_eq!(
            get(&[(IF_UNMODIFIED_SINCE, DAY_BEFORE)]),
            Answer::PreconditionFailed
        );
        assert_eq!(get(&[(IF_UNMODIFIED_SINCE, THAT_DATE)]), Answer::Full);
    }

    proptest! {
        #[test]
        fn any_header_gets_a_bounded_answer(
            text in "(bytes=)?[-0-9, x=]{0,40}|[ -~]{0,40}",
            len in 0_u64..5_000,
            condition in "[ -~]{0,30}",
        ) {
            let pairs = [(RANGE, text.as_str()), (IF_NONE_MATCH, &condition), (IF_RANGE, &condition)];
            for take in 1..=3 {
                if let Answer::Partial(range) = answer(&Method::GET, &headers(&pairs[..take]), &entity(len)) {
                    prop_assert!(range.start < range.end && range.end <= len);
                }
            }
        }

        #[test]
        fn every_plain_range_is_what_it_says(first in 0_u64..2_000, more in 0_u64..2_000, len in 1_u64..2_000) {
            let text = format!("bytes={first}-{}", first + more);
            let answered = answer(&Method::GET, &headers(&[(RANGE, &text)]), &entity(len));
            if first < len {
                prop_assert_eq!(answered, Answer::Partial(first..(first + more + 1).min(len)));
            } else {
                prop_assert_eq!(answered, Answer::Unsatisfiable);
            }
        }
    }
}
