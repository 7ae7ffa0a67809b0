//! TLS with the certificate of the settings, which a reload reads again.
//! Refuses versions before TLS 1.2.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{self, ServerConfig, crypto::ring},
};

/// The certificate in use. Clones share it.
#[derive(Clone)]
pub(crate) struct Tls(Arc<Inner>);

struct Inner {
    cert: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("cannot read '{}': {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("'{}' holds no certificate: it must be in PEM form", .0.display())]
    NoCertificate(PathBuf),
    #[error("the certificate and its key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

impl Tls {
    pub(crate) fn open(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let config = RwLock::new(Arc::new(read(cert, key)?));
        Ok(Self(Arc::new(Inner { cert: cert.to_owned(), key: key.to_owned(), config })))
    }

    /// Reads certificate and key again, for new connections.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        let config = Arc::new(read(&self.0.cert, &self.0.key)?);
        *self.0.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.0.config.read().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

fn read(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let unreadable = |path: &Path, reason: String| TlsError::Unreadable { path: path.to_owned(), reason };
    let bytes = |path: &Path| std::fs::read(path).map_err(|error: io::Error| unreadable(path, error.to_string()));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes(cert)?).collect();
    let chain = chain.map_err(|error| unreadable(cert, error.to_string()))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(cert.to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(&bytes(key)?).map_err(|error| unreadable(key, error.to_string()))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
