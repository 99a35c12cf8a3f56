//! Takes connections, and gives them to the event loops by turns.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;

use super::connection::serve;
use super::{Counted, Shared};

/// Pause after a connection that could not be taken: the process has too many open files, as a rule.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes connections until it is aborted.
pub async fn accept(socket: TcpListener, shared: Arc<Shared>, event_loops: Arc<[Handle]>) {
    for turn in 0.. {
        match socket.accept().await {
            // An error means that the client is gone already.
            Ok((stream, _)) => drop(begin(stream, &shared, &event_loops, turn)),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

fn begin(stream: TcpStream, shared: &Arc<Shared>, event_loops: &[Handle], turn: usize) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let counted = Counted::new(Arc::clone(shared));
    let turn = turn % event_loops.len();
    if turn == 0 {
        tokio::spawn(serve(stream, counted));
        return Ok(());
    }
    let stream = stream.into_std()?;
    event_loops[turn].spawn(async move {
        if let Ok(stream) = TcpStream::from_std(stream) {
            serve(stream, counted).await;
        }
    });
    Ok(())
}
