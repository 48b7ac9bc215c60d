//! Bounded numbers and texts (P2, P21). Each is parsed once, where it enters; the rest of the crate trusts it.
//!
//! The limits are chosen so that no sum that the ledger forms can leave a signed 64-bit column: at most
//! [`Capacity::MAX`] units are in use in a pool, and one claim adds at most [`Units::MAX`].

use std::collections::BTreeMap;
use std::time::Duration;

use ether_types::ScopeName;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

/// A value outside its range. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {range}, not {value}")]
pub struct Invalid {
    /// Which field of which request.
    pub field: &'static str,
    /// The range, in words.
    pub range: &'static str,
    /// What was given, shortened where it is long.
    pub value: String,
}

impl Invalid {
    pub(crate) fn new(field: &'static str, range: &'static str, value: impl std::fmt::Display) -> Self {
        let mut value = value.to_string();
        if let Some((end, _)) = value.char_indices().nth(80) {
            value.truncate(end);
        }
        Self { field, range, value }
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $field:literal, $min:literal ..= $max:literal, $range:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(into = "u64")]
        pub struct $name(u64);

        impl $name {
            /// The smallest value.
            pub const MIN: $name = $name($min);
            /// The largest value.
            pub const MAX: $name = $name($max);

            /// Accepts `value` where it is in range.
            ///
            /// # Errors
            /// [`Invalid`] names the field and its range.
            pub fn new(value: u64) -> Result<Self, Invalid> {
                if ($min..=$max).contains(&value) {
                    Ok(Self(value))
                } else {
                    Err(Invalid::new($field, $range, value))
                }
            }

            /// The number itself.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl TryFrom<u64> for $name {
            type Error = Invalid;
            fn try_from(value: u64) -> Result<Self, Invalid> {
                Self::new(value)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Self::new(whole(from, $field, $range)?).map_err(D::Error::custom)
            }
        }

        impl From<$name> for u64 {
            fn from(value: $name) -> u64 {
                value.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Units of one claim.
    Units, "units", 1..=1_000_000_000_000, "1 to 1000000000000"
}
number! {
    /// Units that a pool may hand out; zero denies everything.
    Capacity, "capacity", 0..=1_000_000_000_000, "0 to 1000000000000"
}
number! {
    /// Rows that a ledger may remember, tombstones included (P17).
    Quota, "ledger quota", 1..=10_000_000, "1 to 10000000"
}
number! {
    /// Rows in one page of an answer.
    PageSize, "page size", 1..=1_000, "1 to 1000"
}

/// A whole number, or an error that names `field` and its `range` whatever stands there instead.
pub(crate) fn whole<'de, D: Deserializer<'de>>(
    from: D,
    field: &'static str,
    range: &'static str,
) -> Result<u64, D::Error> {
    struct Whole {
        field: &'static str,
        range: &'static str,
    }
    impl Whole {
        fn refuse<E: serde::de::Error>(&self, value: impl std::fmt::Display) -> Result<u64, E> {
            Err(E::custom(Invalid::new(self.field, self.range, value)))
        }
    }
    impl Visitor<'_> for Whole {
        type Value = u64;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{} of {}", self.field, self.range)
        }
        fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<u64, E> {
            Ok(value)
        }
        fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<u64, E> {
            u64::try_from(value).or_else(|_| self.refuse(value))
        }
        // A form that has wider numbers, or reads what is too large as an approximate one.
        fn visit_u128<E: serde::de::Error>(self, value: u128) -> Result<u64, E> {
            self.refuse(value)
        }
        fn visit_i128<E: serde::de::Error>(self, value: i128) -> Result<u64, E> {
            self.refuse(value)
        }
        fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<u64, E> {
            self.refuse(value)
        }
    }
    from.deserialize_u64(Whole { field, range })
}

impl Quota {
    /// The smallest fleet ceiling (P19).
    pub const CEILING_MIN: u64 = 4_096;
    /// The fleet ceiling where none is configured (P19).
    pub const CEILING_DEFAULT: u64 = 1_000_000;

    /// Accepts `value` as a fleet ceiling.
    ///
    /// # Errors
    /// [`Invalid`] outside 4,096 to 10,000,000.
    pub fn ceiling(value: u64) -> Result<Self, Invalid> {
        if (Self::CEILING_MIN..=Self::MAX.0).contains(&value) {
            Ok(Self(value))
        } else {
            Err(Invalid::new("fleet ceiling", "4096 to 10000000", value))
        }
    }
}

/// The length of a first lease: more than zero, at most an hour; the ledger's own maximum may be lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "u64")]
pub struct Lease(Duration);

const LEASE: &str = "1 us to 1 h in whole microseconds";

impl<'de> Deserialize<'de> for Lease {
    /// From microseconds.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::try_from(whole(from, "lease", LEASE)?).map_err(D::Error::custom)
    }
}

impl Lease {
    /// Accepts a duration in whole microseconds.
    ///
    /// # Errors
    /// [`Invalid`] where it is zero, over an hour, or finer than a microsecond (D5).
    pub fn new(length: Duration) -> Result<Self, Invalid> {
        let whole = length.subsec_nanos().is_multiple_of(1_000);
        if whole && !length.is_zero() && length <= Duration::from_secs(3600) {
            Ok(Self(length))
        } else {
            Err(Invalid::new("lease", LEASE, format!("{length:?}")))
        }
    }

    /// The length.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl TryFrom<u64> for Lease {
    type Error = Invalid;
    /// From microseconds.
    fn try_from(micros: u64) -> Result<Self, Invalid> {
        Self::new(Duration::from_micros(micros))
    }
}

impl From<Lease> for u64 {
    fn from(lease: Lease) -> u64 {
        u64::try_from(lease.0.as_micros()).unwrap_or(u64::MAX)
    }
}

/// What an assignment takes: 1 to 16 distinct scopes with their units, in one order whatever order they
/// came in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(into = "Vec<(ScopeName, Units)>")]
pub struct Claims(BTreeMap<ScopeName, Units>);

impl<'de> Deserialize<'de> for Claims {
    /// From a list of pairs, of which no more are read than may be.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Claims;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("claims of 1 to 16 scopes, each with its units")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Claims, A::Error> {
                let mut claims = Vec::new();
                while let Some(claim) = from.next_element()? {
                    claims.push(claim);
                    if claims.len() > Claims::MAX {
                        break;
                    }
                }
                Claims::new(claims).map_err(A::Error::custom)
            }
        }
        from.deserialize_seq(Pairs)
    }
}

impl Claims {
    /// The most scopes that one assignment may claim.
    pub const MAX: usize = 16;

    /// Accepts 1 to 16 claims of distinct scopes.
    ///
    /// # Errors
    /// [`Invalid`] for none, too many, or one scope twice.
    pub fn new(claims: impl IntoIterator<Item = (ScopeName, Units)>) -> Result<Self, Invalid> {
        let mut sorted = BTreeMap::new();
        for (scope, units) in claims {
            if let Some(double) = sorted.insert(scope.clone(), units) {
                let value = format!("{scope} twice ({double} and {units} units)");
                return Err(Invalid::new("claims", "distinct scopes", value));
            }
            if sorted.len() > Self::MAX {
                return Err(Invalid::new("claims", "1 to 16 scopes", "more"));
            }
        }
        if sorted.is_empty() {
            return Err(Invalid::new("claims", "1 to 16 scopes", "none"));
        }
        Ok(Self(sorted))
    }

    /// The claims in the order of their scopes.
    pub fn iter(&self) -> impl Iterator<Item = (&ScopeName, Units)> {
        self.0.iter().map(|(scope, units)| (scope, *units))
    }

    /// The units claimed from `scope`.
    pub fn get(&self, scope: &ScopeName) -> Option<Units> {
        self.0.get(scope).copied()
    }

    /// How many scopes are claimed.
    #[allow(clippy::len_without_is_empty, reason = "claims are never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl TryFrom<Vec<(ScopeName, Units)>> for Claims {
    type Error = Invalid;
    fn try_from(claims: Vec<(ScopeName, Units)>) -> Result<Self, Invalid> {
        Self::new(claims)
    }
}

impl From<Claims> for Vec<(ScopeName, Units)> {
    fn from(claims: Claims) -> Self {
        claims.0.into_iter().collect()
    }
}

/// Terminal evidence as text: 1 to 4,096 printable ASCII characters (T26).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EvidenceBody(String);

impl EvidenceBody {
    /// The largest number of bytes.
    pub const MAX_LEN: usize = 4_096;

    /// Accepts `text` where its length and alphabet fit.
    ///
    /// # Errors
    /// [`Invalid`] with the range; the text itself is not repeated.
    pub fn new(text: impl Into<String>) -> Result<Self, Invalid> {
        let text = text.into();
        if text.is_empty() || text.len() > Self::MAX_LEN {
            let value = format!("{} bytes", text.len());
            return Err(Invalid::new("evidence", "1 to 4096 bytes", value));
        }
        match text.bytes().position(|b| !(0x20..=0x7e).contains(&b)) {
            Some(at) => Err(Invalid::new(
                "evidence",
                "printable ASCII",
                format!("another byte at {at}"),
            )),
            None => Ok(Self(text)),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for EvidenceBody {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        Self::new(text)
    }
}

impl From<EvidenceBody> for String {
    fn from(body: EvidenceBody) -> String {
        body.0
    }
}
