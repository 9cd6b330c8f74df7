//! Copies the bytes of a TCP connection from one end to the other, with the delay and loss of the link between them.

use std::io;
use std::time::Duration;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{DELAY, LOSS_PERCENT, LinkView, MAX_LOSSES, NetworkFaults, PIECE, QUEUE, RETRANSMIT};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum CopyEnd {
    /// Both ends closed their stream, and all bytes arrived.
    Done,
    /// One end is gone, or a fault reset it: the other end gets a reset.
    Reset,
}

/// Carries bytes both ways until the connection ends.
pub(super) async fn relay_both_ways(
    client: &mut TcpStream,
    server: &mut TcpStream,
    view: &LinkView,
    chances: [ChaCha8Rng; 2],
) -> CopyEnd {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let [there, back] = chances;
    let resets = view.current_faults().resets;
    let both = async {
        tokio::try_join!(
            relay_one_way(from_client, to_server, view, there),
            relay_one_way(from_server, to_client, view, back),
        )
    };
    tokio::select! {
        biased;
        () = view.wait_until(|trouble| trouble.resets != resets) => CopyEnd::Reset,
        ended = both => if ended.is_ok() { CopyEnd::Done } else { CopyEnd::Reset },
    }
}

/// A piece with its arrival time; an empty piece is the end of the stream.
type DelayedPiece = (Instant, Vec<u8>);

async fn relay_one_way(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    view: &LinkView,
    chance: ChaCha8Rng,
) -> io::Result<()> {
    let (send, receive) = mpsc::channel(QUEUE);
    tokio::try_join!(read_pieces(from, send, view, chance), write_pieces(to, receive, view)).map(drop)
}

async fn read_pieces(
    mut from: ReadHalf<'_>,
    pieces: mpsc::Sender<DelayedPiece>,
    view: &LinkView,
    mut chance: ChaCha8Rng,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let length = from.read(&mut buffer).await?;
        let piece = buffer[..length].to_vec();
        let last = piece.is_empty();
        let due = Instant::now() + draw_delay(view.current_faults(), &mut chance);
        if pieces.send((due, piece)).await.is_err() || last {
            return Ok(());
        }
    }
}

/// Additional delay of a piece.
pub(super) fn draw_delay(trouble: NetworkFaults, chance: &mut ChaCha8Rng) -> Duration {
    let mut late = if trouble.delay > 0 { DELAY } else { Duration::ZERO };
    if trouble.loss > 0 {
        let mut again = RETRANSMIT;
        for _ in 0..MAX_LOSSES {
            if chance.random_range(0..100) >= LOSS_PERCENT {
                break;
            }
            late += again;
            again *= 2;
        }
    }
    late
}

async fn write_pieces(
    mut to: WriteHalf<'_>,
    mut pieces: mpsc::Receiver<DelayedPiece>,
    view: &LinkView,
) -> io::Result<()> {
    while let Some((due, piece)) = pieces.recv().await {
        sleep_until(due).await;
        view.wait_until_restored().await;
        if piece.is_empty() {
            return to.shutdown().await;
        }
        to.write_all(&piece).await?;
    }
    Ok(())
}
