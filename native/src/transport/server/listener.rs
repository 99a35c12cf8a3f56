//! Takes connections, and gives them to the event loops by turns.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;

use super::connection::{Ends, serve};
use super::{Counted, Shared};

/// Pause after a connection that could not be taken: the process has too many open files, as a rule.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes connections until it is aborted.
pub async fn accept(socket: TcpListener, shared: Arc<Shared>, event_loops: Arc<[Handle]>) {
    for turn in 0.. {
        match socket.accept().await {
            // An error means that the client is gone already.
            Ok((stream, client)) => drop(begin(stream, client, &shared, &event_loops[turn % event_loops.len()])),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

fn begin(stream: TcpStream, client: SocketAddr, shared: &Arc<Shared>, event_loop: &Handle) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let ends = Ends::new(client, stream.local_addr()?);
    let counted = Counted::new(Arc::clone(shared));
    if event_loop.id() == Handle::current().id() {
        tokio::spawn(serve(stream, ends, counted));
        return Ok(());
    }
    let stream = stream.into_std()?;
    event_loop.spawn(async move {
        if let Ok(stream) = TcpStream::from_std(stream) {
            serve(stream, ends, counted).await;
        }
    });
    Ok(())
}
