//! Where an operator may be.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The port of an operator when none is given.
pub const PORT: u16 = 10448;

/// `HOST[:PORT]`: a name, an IPv4 address, or an IPv6 address in brackets (bare without a port).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Host {
    Ip(IpAddr),
    Name(String),
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not HOST or HOST:PORT ({why})")]
pub struct NotAnAddress {
    text: String,
    why: &'static str,
}

impl Address {
    /// The name, unless the host is an address.
    pub(super) fn name(&self) -> Option<&str> {
        match &self.host {
            Host::Name(name) => Some(name),
            Host::Ip(_) => None,
        }
    }

    /// Everything the name resolves to, each once, in the resolver's order.
    pub(super) async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let name = match &self.host {
            Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, self.port)]),
            Host::Name(name) => name,
        };
        let mut seen = BTreeSet::new();
        let resolved = tokio::net::lookup_host((name.as_str(), self.port)).await?;
        Ok(resolved.filter(|address| seen.insert(*address)).collect())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        match host {
            Host::Ip(ip) => SocketAddr::new(*ip, *port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{port}"),
        }
    }
}

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let wrong = |why| NotAnAddress { text: text.to_owned(), why };
        if let Ok(ip) = text.parse::<Ipv6Addr>() {
            return Ok(Self { host: Host::Ip(ip.into()), port: PORT });
        }
        let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(None) => return Err(wrong("the bracket isn't closed")),
            Some(Some((host, ""))) => (host, None),
            Some(Some((host, port))) => {
                (host, Some(port.strip_prefix(':').ok_or_else(|| wrong("a colon follows the bracket"))?))
            }
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = match port.map(str::parse) {
            None => PORT,
            Some(Ok(port)) if port != 0 => port,
            Some(_) => return Err(wrong("a port is a number from 1 to 65535")),
        };
        let host = match host.parse() {
            Ok(ip) => Host::Ip(ip),
            Err(_) if text.starts_with('[') => return Err(wrong("an IPv6 address belongs in the brackets")),
            Err(_) if is_host_name(host) => Host::Name(host.to_ascii_lowercase()),
            Err(_) => return Err(wrong("no host name and no address")),
        };
        Ok(Self { host, port })
    }
}

/// Letters, digits, `-` and `_` between dots: what a resolver and a URL both take.
fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        let plain = label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        plain && (1..=63).contains(&label.len())
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    // All digits and dots is a mistyped address, which a URL would read in a way of its own.
    name.len() <= 253 && name.split('.').all(label) && name.bytes().any(|b| b.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let forms = [
            ("operator.example.com:443", "operator.example.com:443"),
            ("Operator", "operator:10448"),
            ("192.0.2.1", "192.0.2.1:10448"),
            ("192.0.2.1:1", "192.0.2.1:1"),
            ("[2001:db8::1]:443", "[2001:db8::1]:443"),
            ("[2001:db8::1]", "[2001:db8::1]:10448"),
            ("2001:db8::1", "[2001:db8::1]:10448"),
        ];
        for (text, told) in forms {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), told);
        }
    }

    #[test]
    fn what_is_no_address_says_why() {
        let wrong = [
            ("", "no host name"),
            ("https://operator", "1 to 65535"),
            ("operator:0", "1 to 65535"),
            ("operator:", "1 to 65535"),
            ("operator:65536", "1 to 65535"),
            ("[2001:db8::1", "isn't closed"),
            ("[2001:db8::1]443", "a colon follows"),
            ("[operator]:443", "an IPv6 address"),
            ("192.0.2", "no host name"),
            ("a b", "no host name"),
            ("a..b", "no host name"),
            ("user@host", "no host name"),
        ];
        for (text, why) in wrong {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
