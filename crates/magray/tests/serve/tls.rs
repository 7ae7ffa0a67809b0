//! The server over TLS: both versions of HTTP, clients that do not trust it, certificates that change and that are wrong.

use std::{io::Write, sync::Arc};

use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto::ring};

use crate::{
    http::connect,
    rig::{Server, Setup, wait_for},
};

const CERT: &str = include_str!("tls/cert.pem");
const KEY: &str = include_str!("tls/key.pem");
const OTHER_CERT: &str = include_str!("tls/other-cert.pem");
const OTHER_KEY: &str = include_str!("tls/other-key.pem");

fn start() -> (Server, String, String) {
    let setup = Setup::embedder();
    let (cert, key) = (setup.file("cert.pem", CERT), setup.file("key.pem", KEY));
    (setup.arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key).start(), cert, key)
}

/// Shakes hands as one who trusts this certificate and speaks this protocol, and asks whether the server lives.
fn ask(server: &Server, trusted: &str, protocol: &str) -> Result<(Option<Vec<u8>>, String), String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.into()];
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, connect(server.address));
    let request = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    // A server that closes without a farewell has still answered.
    let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
    Ok((stream.conn.alpn_protocol().map(<[u8]>::to_vec), String::from_utf8_lossy(&answer).into_owned()))
}

#[test]
fn clients_that_trust_it_are_answered_and_others_leave() {
    let (server, ..) = start();
    let (protocol, answer) = ask(&server, CERT, "http/1.1").unwrap();
    assert_eq!(protocol.as_deref(), Some(&b"http/1.1"[..]));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(ask(&server, CERT, "h2").unwrap().0.as_deref(), Some(&b"h2"[..]));
    assert!(ask(&server, OTHER_CERT, "http/1.1").is_err());
}

#[test]
fn a_new_certificate_is_taken_while_it_runs_and_a_wrong_one_is_not() {
    let (server, cert, key) = start();
    std::fs::write(&cert, "nonsense").unwrap();
    server.signal(rustix::process::Signal::HUP);
    wait_for("the refusal", || server.said().contains("nothing has changed"));
    assert!(ask(&server, CERT, "http/1.1").is_ok());
    std::fs::write(&cert, OTHER_CERT).unwrap();
    std::fs::write(&key, OTHER_KEY).unwrap();
    server.signal(rustix::process::Signal::HUP);
    wait_for("the new certificate", || ask(&server, OTHER_CERT, "http/1.1").is_ok());
    assert!(ask(&server, CERT, "http/1.1").is_err());
}

#[test]
fn certificates_that_cannot_be_used_are_refused_at_the_start() {
    for (cert, key) in [("", KEY), (CERT, ""), (CERT, OTHER_KEY), (KEY, KEY)] {
        let setup = Setup::embedder();
        let (cert, key) = (setup.file("cert.pem", cert), setup.file("key.pem", key));
        let (code, said) = setup.arg("--tls-cert").arg(cert).arg("--tls-key").arg(key).refused();
        assert!(code == 2 && said.contains("error:"), "{code}: {said}");
    }
    let (code, said) = Setup::embedder().arg("--tls-cert").arg("cert.pem").refused();
    assert!(code == 2 && said.contains("belong together"), "{code}: {said}");
}
