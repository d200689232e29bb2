//! The two digests that names and bodies are made of.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The first 128 bits of a SHA-256: tells two versions of one object apart. 32 lower-case hex digits in text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash([u8; 16]);

impl Hash {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut first = [0; 16];
        first.copy_from_slice(&digest(&SHA256, bytes).as_ref()[..16]);
        Self(first)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not 32 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash is 32 hexadecimal digits")]
pub struct NotAHash;

impl FromStr for Hash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(NotAHash);
        }
        let value = u128::from_str_radix(text, 16).map_err(|_| NotAHash)?;
        Ok(Self(value.to_be_bytes()))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// The first `digits` lower-case hex digits of the SHA-1 of `text`: only for names that users already know.
pub fn sha1_prefix(text: &str, digits: usize) -> String {
    prefix(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref(), digits)
}

/// The first `digits` lower-case hex digits of the SHA-256 of `text`.
pub fn sha256_prefix(text: &str, digits: usize) -> String {
    prefix(digest(&SHA256, text.as_bytes()).as_ref(), digits)
}

fn prefix(bytes: &[u8], digits: usize) -> String {
    let mut text = hex(bytes);
    text.truncate(digits);
    text
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // writing to a String can't fail
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_survives_its_text() {
        let hash = Hash::of(b"abc");
        assert_eq!(hash.to_string(), "ba7816bf8f01cfea414140de5dae2223", "the vector of FIPS 180-4, first half");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!("ba78".parse::<Hash>(), Err(NotAHash));
        assert_eq!("+a7816bf8f01cfea414140de5dae2223".parse::<Hash>(), Err(NotAHash));
    }

    #[test]
    fn names_keep_the_digits_users_know() {
        let vectors =
            [("eth0", "3e616"), ("ens192", "e8be5"), ("ens224", "cb188"), ("eno1", "89993"), ("bond0", "bb052")];
        for (interface, digits) in vectors {
            assert_eq!(sha1_prefix(interface, 5), digits, "{interface}");
        }
    }
}
