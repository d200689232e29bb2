//! The certificates of a cluster: one authority for servers and clients, one for the aggregation layer, and a key for
//! the tokens of ServiceAccounts.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

/// The authorities, and the folder where everything they sign lies as PEM files.
#[derive(Debug)]
pub struct Pki {
    folder: PathBuf,
    clients: Issuer<'static, KeyPair>,
    aggregation: Issuer<'static, KeyPair>,
}

/// Who a certificate is for.
#[derive(Clone, Debug, Default)]
pub struct Subject<'a> {
    /// The user's name to Kubernetes.
    pub common_name: &'a str,
    /// The user's group to Kubernetes.
    pub organisation: Option<&'a str>,
    /// The host names it serves; a certificate without names and addresses is a client's only.
    pub names: Vec<String>,
    /// The addresses it serves.
    pub addresses: Vec<IpAddr>,
}

impl Pki {
    /// Makes the authorities and the key for tokens.
    pub fn create(folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
        let clients = authority(folder, "ca")?;
        let aggregation = authority(folder, "front-proxy-ca")?;
        let tokens = KeyPair::generate()?;
        fs::write(folder.join("sa.key"), tokens.serialize_pem())?;
        fs::write(folder.join("sa.pub"), tokens.public_key_pem())?;
        Ok(Self { folder: folder.to_owned(), clients, aggregation })
    }

    /// The path of a file of this folder: `ca.crt`, `admin.key`, …
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Signs `<name>.crt` with the cluster's authority.
    pub fn issue(&self, name: &str, subject: &Subject<'_>) -> anyhow::Result<()> {
        self.sign(name, subject, &self.clients)
    }

    /// Signs `<name>.crt` with the aggregation layer's authority.
    pub fn issue_front_proxy(&self, name: &str, subject: &Subject<'_>) -> anyhow::Result<()> {
        self.sign(name, subject, &self.aggregation)
    }

    fn sign(&self, name: &str, subject: &Subject<'_>, by: &Issuer<'static, KeyPair>) -> anyhow::Result<()> {
        let key = KeyPair::generate()?;
        let certificate = params(subject)?.signed_by(&key, by);
        let certificate = certificate.with_context(|| format!("failed to sign the certificate of {name}"))?;
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem())?;
        fs::write(self.file(&format!("{name}.crt")), certificate.pem())?;
        Ok(())
    }
}

fn authority(folder: &Path, name: &str) -> anyhow::Result<Issuer<'static, KeyPair>> {
    let mut params = params(&Subject { common_name: name, ..Subject::default() })?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages.clear();
    let key = KeyPair::generate()?;
    fs::write(folder.join(format!("{name}.key")), key.serialize_pem())?;
    fs::write(folder.join(format!("{name}.crt")), params.self_signed(&key)?.pem())?;
    Ok(Issuer::new(params, key))
}

fn params(subject: &Subject<'_>) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(subject.names.clone()).context("a host name is not one")?;
    params.subject_alt_names.extend(subject.addresses.iter().copied().map(SanType::IpAddress));
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(organisation) = subject.organisation {
        params.distinguished_name.push(DnType::OrganizationName, organisation);
    }
    params.distinguished_name.push(DnType::CommonName, subject.common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if !params.subject_alt_names.is_empty() {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    Ok(params)
}
