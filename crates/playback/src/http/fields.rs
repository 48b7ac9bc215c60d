//! Bodies of requests, read field by field.
//!
//! A deserializer would say that something is wrong; whoever wrote the request needs to hear which field it
//! is, what came in it, and what may stand there. The bounds of a field are written where it is read, and
//! nowhere else. Fields that nobody reads are ignored; `null` counts as absent.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// The longest text that is repeated in an error. Tokens and grants are longer: whoever puts one into the
/// wrong field does not find it in an answer.
const LONGEST_SHOWN: usize = 24;

/// What is read from a body.
pub(crate) trait Read: Sized {
    /// Reads it.
    fn read(fields: &Fields<'_>) -> Result<Self, ApiError>;
}

/// The fields of one object.
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Where the object stands, with a dot at its end; empty for the body itself.
    path: String,
}

/// Reads a whole body.
pub(crate) fn read<T: Read>(bytes: &[u8]) -> Result<T, ApiError> {
    let body: Value = serde_json::from_slice(bytes).map_err(|error| {
        // Of the parser's own words only the place is repeated: they may quote the body.
        let (line, column) = (error.line(), error.column());
        ApiError::malformed(if bytes.is_empty() {
            "the request's body is empty; it must be a JSON object".to_owned()
        } else {
            format!("the request's body is not JSON at line {line}, column {column}")
        })
    })?;
    let Value::Object(object) = &body else {
        let shown = shown(&body);
        return Err(ApiError::malformed(format!(
            "the request's body is {shown}; it must be a JSON object"
        )));
    };
    let path = String::new();
    T::read(&Fields { object, path })
}

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, value: &Value, allowed: impl Display) -> ApiError {
        ApiError::field(&format!("{}{name}", self.path), &shown(value), allowed)
    }

    /// A value that must be there; `allowed` says what it is.
    pub(crate) fn needed<T>(
        &self,
        name: &str,
        value: Option<T>,
        allowed: impl Display,
    ) -> Result<T, ApiError> {
        value.ok_or_else(|| ApiError::field(&format!("{}{name}", self.path), "missing", allowed))
    }

    /// A text.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let text = value.as_str();
        text.map(Some).ok_or_else(|| self.wrong(name, value, "a text"))
    }

    /// A text that must be there and is never repeated.
    pub(crate) fn secret(&self, name: &str) -> Result<&'a str, ApiError> {
        let value = self.needed(name, self.get(name), "a text")?;
        value
            .as_str()
            .ok_or_else(|| ApiError::field(&format!("{}{name}", self.path), "something else", "a text"))
    }

    /// Yes or no.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let flag = value.as_bool();
        flag.map(Some)
            .ok_or_else(|| self.wrong(name, value, "true or false"))
    }

    /// A whole number within `range`.
    pub(crate) fn whole<T>(&self, name: &str, range: RangeInclusive<T>) -> Result<Option<T>, ApiError>
    where
        T: TryFrom<i64> + PartialOrd + Display,
    {
        let allowed = format!("a whole number from {} to {}", range.start(), range.end());
        self.whole_said(name, range, &allowed)
    }

    /// A whole number within `range`, where `allowed` says better than the range what it stands for.
    pub(crate) fn whole_said<T>(
        &self,
        name: &str,
        range: RangeInclusive<T>,
        allowed: &str,
    ) -> Result<Option<T>, ApiError>
    where
        T: TryFrom<i64> + PartialOrd,
    {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = value.as_i64().and_then(|number| T::try_from(number).ok());
        let number = number.filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| self.wrong(name, value, allowed))
    }

    /// A number within `range`.
    pub(crate) fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|number| range.contains(number));
        let allowed = || format!("a number from {} to {}", range.start(), range.end());
        number.map(Some).ok_or_else(|| self.wrong(name, value, allowed()))
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(
        &self,
        name: &str,
        words: &[(&'static str, T)],
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let known = value
            .as_str()
            .and_then(|text| words.iter().find(|(word, _)| *word == text));
        known.map(|(_, meant)| Some(*meant)).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(name, value, words.join(", "))
        })
    }

    /// At most `most` texts of at most `longest` bytes each.
    pub(crate) fn list(
        &self,
        name: &str,
        most: usize,
        longest: usize,
    ) -> Result<Option<Vec<&'a str>>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let allowed = || format!("a list of at most {most} texts of at most {longest} bytes");
        let Some(entries) = value.as_array() else {
            return Err(self.wrong(name, value, allowed()));
        };
        if entries.len() > most {
            let shown = format!("a list of {}", entries.len());
            return Err(ApiError::field(
                &format!("{}{name}", self.path),
                &shown,
                allowed(),
            ));
        }
        let read = entries.iter().enumerate().map(|(n, entry)| {
            let text = entry.as_str().filter(|text| text.len() <= longest);
            let allowed = || format!("a text of at most {longest} bytes");
            text.ok_or_else(|| self.wrong(&format!("{name}[{n}]"), entry, allowed()))
        });
        read.collect::<Result<_, _>>().map(Some)
    }

    /// An object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Self>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Self {
                object,
                path: format!("{}{name}.", self.path),
            })),
            Some(value) => Err(self.wrong(name, value, "an object")),
        }
    }
}

/// A value as an error repeats it: bounded, on one line, and never a whole text that could be a secret.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string().chars().take(LONGEST_SHOWN).collect(),
        Value::String(text) => shown_text(text),
        Value::Array(entries) => format!("a list of {}", entries.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// A text as an error repeats it.
pub(crate) fn shown_text(text: &str) -> String {
    match text.chars().count() {
        0..=LONGEST_SHOWN => Value::from(text).to_string(),
        length => format!("a text of {length} characters"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_could_be_a_secret_is_not_repeated() {
        assert_eq!(shown(&Value::from("dash\n")), r#""dash\n""#);
        let token = "x".repeat(LONGEST_SHOWN + 1);
        assert_eq!(shown(&Value::from(token)), "a text of 25 characters");
        let digits: Value = serde_json::from_str(&format!("1{}", "0".repeat(300))).unwrap();
        assert!(shown(&digits).len() <= LONGEST_SHOWN);
    }

    struct Anything;

    impl Read for Anything {
        fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
            fields.text("a")?;
            fields.whole("a", 0_u16..=7)?;
            fields.number("a", 0.0..=1.0)?;
            fields.list("a", 2, 3)?;
            fields.choice("a", &[("b", ())])?;
            Ok(Self)
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = read::<Anything>(&bytes);
        }

        #[test]
        fn any_value_of_a_field_is_read_without_a_panic(value in "[0-9eE.\\-\"\\[\\]{}a:,]{0,24}") {
            let _ = read::<Anything>(format!("{{\"a\":{value}}}").as_bytes());
        }
    }
}
