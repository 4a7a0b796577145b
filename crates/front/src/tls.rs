//! TLS of NBD connections: the server's certificate, the client certificates that it accepts, and a
//! stream that switches to TLS during a handshake.
//!
//! Certificates only: rustls has no pre-shared keys of the kind that some NBD programs offer (`tls-psk`).

use std::fmt;
use std::io::{self, IoSlice};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nbd::server::TlsPolicy;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// The certificate files of a server, in PEM.
#[derive(Clone, Copy, Debug)]
pub struct TlsFiles<'a> {
    /// The server's certificate, with those between it and the authority that clients know.
    pub certificate: &'a Path,
    /// Its private key.
    pub key: &'a Path,
    /// The authorities that sign clients' certificates; without any, clients need no certificate.
    pub client_authorities: Option<&'a Path>,
}

/// The TLS configuration of a server. Clones share it.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    is_required: bool,
    knows_clients: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("is_required", &self.is_required).finish_non_exhaustive()
    }
}

impl Tls {
    /// TLS with the certificates in `files`; `is_required` refuses clients that do not ask for it.
    ///
    /// # Errors
    /// A file that cannot be read, with its name; `InvalidData` for a malformed one, or a key of
    /// another certificate.
    pub fn from_files(files: &TlsFiles<'_>, is_required: bool) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates(files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(files.key)?)
            .map_err(|error| unusable(files.key, &format_args!("it has no private key: {error}")))?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let builder = builder.map_err(io::Error::other)?;
        let builder = match files.client_authorities {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|error| unusable(path, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| unusable(path, &error))?)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(|error| unusable(files.certificate, &error))?;
        Ok(Self { config: Arc::new(config), is_required, knows_clients: files.client_authorities.is_some() })
    }

    /// Whether clients without TLS are refused.
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// Whether clients without a certificate are refused.
    pub fn requires_client_certificate(&self) -> bool {
        self.is_required && self.knows_clients
    }

    /// The policy in the handshake.
    pub(crate) fn policy(&self) -> TlsPolicy {
        if self.is_required { TlsPolicy::Required } else { TlsPolicy::Allowed }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn unusable(path: &Path, why: &dyn fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()))
}

/// The certificates of a PEM file, at least one.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| unusable(path, &error))?;
    if found.is_empty() { Err(unusable(path, &"it has no certificate in PEM")) } else { Ok(found) }
}

/// A stream without TLS, or with TLS from some moment on.
pub(crate) enum Channel<S> {
    Clear(S),
    /// The TLS handshake is under way.
    Securing(Box<Accept<S>>),
    Secure(Box<TlsStream<S>>),
    /// Only while the state changes.
    Changing,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Channel<S> {
    /// Switches to TLS: its handshake comes first.
    ///
    /// # Panics
    /// When it has switched already.
    pub(crate) fn secure(&mut self, tls: &Tls) {
        let Self::Clear(stream) = std::mem::replace(self, Self::Changing) else { panic!("a stream is secured once") };
        *self = Self::Securing(Box::new(TlsAcceptor::from(Arc::clone(&tls.config)).accept(stream)));
    }

    /// Ready when the handshake is over.
    fn poll_secured(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Self::Securing(accept) = self {
            let stream = ready!(Pin::new(accept.as_mut()).poll(context))?;
            *self = Self::Secure(Box::new(stream));
        }
        Poll::Ready(Ok(()))
    }
}

fn changing() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the stream is neither in the clear nor under TLS")
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Channel<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_secured(context))?;
        match &mut *self {
            Self::Clear(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Secure(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
            Self::Securing(_) | Self::Changing => Poll::Ready(Err(changing())),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Channel<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_secured(context))?;
        match &mut *self {
            Self::Clear(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Secure(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
            Self::Securing(_) | Self::Changing => Poll::Ready(Err(changing())),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_secured(context))?;
        match &mut *self {
            Self::Clear(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Secure(stream) => Pin::new(stream.as_mut()).poll_write_vectored(context, slices),
            Self::Securing(_) | Self::Changing => Poll::Ready(Err(changing())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Clear(stream) => Pin::new(stream).poll_flush(context),
            Self::Secure(stream) => Pin::new(stream.as_mut()).poll_flush(context),
            Self::Securing(_) | Self::Changing => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Clear(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Secure(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
            Self::Securing(_) | Self::Changing => Poll::Ready(Ok(())),
        }
    }
}
