//! Whom to believe that it is the operator.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};

/// Why a CA file can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaError {
    /// Not there, not readable, or not PEM.
    #[error("it can't be read")]
    Read(#[from] pem::Error),
    /// No certificate in it.
    #[error("there is no certificate in it")]
    Empty,
    /// A certificate in it is none that can vouch for others.
    #[error("a certificate in it can't be used")]
    Unusable(#[from] rustls::Error),
}

/// TLS 1.3 towards whom a certificate in `ca` vouches for; nothing that the system trusts counts.
pub(super) fn config(ca: &Path) -> Result<ClientConfig, CaError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    if roots.is_empty() {
        return Err(CaError::Empty);
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
