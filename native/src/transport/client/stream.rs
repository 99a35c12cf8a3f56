//! A socket to a worker, with TLS or without; nothing here waits but the handshake.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, Error};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::Failure;
use crate::transport::tls::{Unusable, client_config};

static GENERATIONS: AtomicU64 = AtomicU64::new(0);

/// The authorities that workers are verified by.
#[derive(Debug, Clone)]
pub struct Trust {
    config: Arc<ClientConfig>,
    generation: u64,
}

impl Trust {
    /// Trusts these certificates (PEM) and those that they signed.
    ///
    /// # Errors
    /// There is none that can be used.
    pub fn new(authorities: &[u8]) -> Result<Self, Unusable> {
        let config = Arc::new(client_config(authorities)?);
        Ok(Self { config, generation: GENERATIONS.fetch_add(1, Ordering::Relaxed) })
    }

    /// How a worker whose certificate has this name is verified.
    ///
    /// # Errors
    /// It is no name.
    pub fn named(&self, name: &str) -> Result<Verified, InvalidDnsNameError> {
        let name = ServerName::try_from(name.to_owned())?;
        Ok(Verified { trust: self.clone(), name })
    }
}

/// How a worker is verified.
#[derive(Debug, Clone)]
pub struct Verified {
    trust: Trust,
    name: ServerName<'static>,
}

impl Verified {
    /// Tells connections apart that were verified otherwise.
    #[must_use]
    pub fn mark(&self) -> String {
        format!(" {} {}", self.name.to_str(), self.trust.generation)
    }
}

pub enum Stream {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

pub struct Tls {
    socket: TcpStream,
    tls: ClientConnection,
}

impl Stream {
    /// A socket that has connected, after its handshake.
    pub async fn begin(socket: TcpStream, verified: Option<&Verified>) -> Result<Self, Failure> {
        let Some(verified) = verified else { return Ok(Self::Plain(socket)) };
        let tls = ClientConnection::new(Arc::clone(&verified.trust.config), verified.name.clone());
        let mut made = Box::new(Tls { socket, tls: tls.map_err(|error| Failure::Untrusted(reason(&error)))? });
        made.handshake().await?;
        Ok(Self::Tls(made))
    }

    /// What has come; nothing at the end. `WouldBlock` where nothing has.
    pub fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_read(buffer),
            Self::Tls(tls) => tls.fill(buffer),
        }
    }

    /// Takes some of the data, and sends what it can. `WouldBlock` where nothing can be taken.
    pub fn try_write(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write_vectored(data),
            Self::Tls(tls) => tls.write(data),
        }
    }

    /// Whether all that was taken is sent.
    pub fn is_sent(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Tls(tls) => !tls.tls.wants_write(),
        }
    }

    /// Sends what was taken. `WouldBlock` where not all of it can be sent now.
    pub fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.flush(),
        }
    }

    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.socket,
        }
    }
}

impl Tls {
    async fn handshake(&mut self) -> Result<(), Failure> {
        while self.tls.is_handshaking() {
            let flushed = self.flush();
            let received = self.receive();
            let interest =
                if self.tls.wants_write() { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
            match (flushed, received) {
                (_, Ok(Received::Untrusted(reason))) => return Err(Failure::Untrusted(reason)),
                (_, Ok(Received::Some)) => {}
                (Ok(()), Err(error)) | (Err(error), Err(_)) if error.kind() == ErrorKind::WouldBlock => {
                    self.socket.ready(interest).await.map_err(|_| Failure::Unreachable)?;
                }
                _ => return Err(Failure::Unreachable),
            }
        }
        Ok(())
    }

    /// Reads what the socket has.
    fn receive(&mut self) -> io::Result<Received> {
        if self.tls.read_tls(&mut Bare(&self.socket))? == 0 {
            return Ok(Received::End);
        }
        if let Err(error) = self.tls.process_new_packets() {
            let _ = self.flush(); // the alert, where it can be sent
            return Ok(Received::Untrusted(reason(&error)));
        }
        Ok(Received::Some)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.next(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(_) if filled > 0 => break, // it comes again
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn next(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if matches!(self.receive()?, Received::Untrusted(_)) {
                return Err(ErrorKind::InvalidData.into());
            }
        }
    }

    fn write(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        let taken = self.tls.writer().write_vectored(data)?;
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Bare(&self.socket))?;
        }
        Ok(())
    }
}

enum Received {
    Some,
    End,
    /// It is no TLS, or why the certificate is not accepted.
    Untrusted(&'static str),
}

/// Why a handshake fails, for whoever operates the worker.
fn reason(error: &Error) -> &'static str {
    use CertificateError as Certificate;
    match error {
        Error::InvalidCertificate(Certificate::UnknownIssuer) => "no authority that is trusted has issued it",
        Error::InvalidCertificate(Certificate::NotValidForName | Certificate::NotValidForNameContext { .. }) => {
            "it has another name than the worker's"
        }
        Error::InvalidCertificate(Certificate::Expired | Certificate::ExpiredContext { .. }) => "it has expired",
        Error::InvalidCertificate(Certificate::NotValidYet | Certificate::NotValidYetContext { .. }) => {
            "it is not valid yet"
        }
        Error::InvalidCertificate(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "it is an authority's (CA:TRUE), not one that an authority has issued"
        }
        Error::InvalidCertificate(_) => "it is not valid",
        Error::PeerIncompatible(_) | Error::AlertReceived(_) => "the worker does not speak TLS 1.3",
        _ => "the worker does not speak TLS",
    }
}

/// A socket as the library reads and writes it.
struct Bare<'a>(&'a TcpStream);

impl Read for Bare<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for Bare<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.try_write(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
