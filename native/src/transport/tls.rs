//! TLS: what a server presents, which may be replaced while it runs, and whom a client trusts.

use std::error::Error;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Name of HTTP/2 in a handshake.
pub const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Why PEM cannot be used.
pub type Unusable = Box<dyn Error + Send + Sync>;

/// What a server presents at its next handshake; nothing, where it serves without TLS.
#[derive(Default)]
pub struct Presented(RwLock<Option<Arc<ServerConfig>>>);

impl Presented {
    /// Presents another certificate and private key, both PEM, from now on.
    ///
    /// # Errors
    /// They cannot be used, or do not fit each other; what was presented before stays.
    pub fn present(&self, certificate: &[u8], key: &[u8]) -> Result<(), Unusable> {
        let config = server_config(certificate, key)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(config));
        Ok(())
    }

    /// What is presented now.
    #[must_use]
    pub fn now(&self) -> Option<Arc<ServerConfig>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn server_config(certificate: &[u8], key: &[u8]) -> Result<ServerConfig, Unusable> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(certificates(certificate)?, PrivateKeyDer::from_pem_slice(key)?)?;
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    config.ticketer = ring::Ticketer::new()?; // keeps no memory for clients that may come back
    Ok(config)
}

/// A client that trusts these certificates (PEM) and those that they signed, and no others.
///
/// # Errors
/// There is none that can be used.
pub fn client_config(authorities: &[u8]) -> Result<ClientConfig, Unusable> {
    let mut trusted = RootCertStore::empty();
    for certificate in certificates(authorities)? {
        trusted.add(certificate)?;
    }
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP1.to_vec()];
    config.resumption = Resumption::disabled(); // each connection looks at the certificate
    Ok(config)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()?;
    if found.is_empty() { Err("no certificate in it".into()) } else { Ok(found) }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

#[cfg(test)]
mod tests {
    use super::{Presented, client_config};

    #[test]
    fn what_cannot_be_used_is_refused() {
        let presented = Presented::default();
        for (certificate, key) in [("", ""), ("-----BEGIN CERTIFICATE-----\nx", "y")] {
            assert!(presented.present(certificate.as_bytes(), key.as_bytes()).is_err());
            assert!(client_config(certificate.as_bytes()).is_err());
        }
        assert!(presented.now().is_none());
    }
}
