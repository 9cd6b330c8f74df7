//! Tests that bytes pass through rivers unchanged, whatever their number, the sizes of the writes, and the order of the
//! half-closes.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::rivers::relay::relay_streams;

/// The two ends of a connection over loopback.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let address = listener.local_addr().expect("a bound listener has an address");
    let (connected, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    (connected.expect("the listener is open"), accepted.expect("a client connects").0)
}

/// Sends the pieces and closes this half; if `patient`, only after the other half has ended. Returns the bytes that arrive.
async fn exchange(mut stream: TcpStream, pieces: &[Vec<u8>], patient: bool) -> Vec<u8> {
    let (mut reader, mut writer) = stream.split();
    let mut arrived = Vec::new();
    if patient {
        reader.read_to_end(&mut arrived).await.expect("the relay is alive");
    }
    let send = async {
        for piece in pieces {
            writer.write_all(piece).await.expect("the relay is alive");
        }
        writer.shutdown().await.expect("the relay is alive");
    };
    let mut rest = Vec::new();
    let (_, read) = tokio::join!(send, reader.read_to_end(&mut rest));
    read.expect("the relay is alive");
    arrived.extend(rest);
    arrived
}

/// The bytes that arrive at the upstream and at the client.
async fn relayed(up: &[Vec<u8>], down: &[Vec<u8>], patient: bool) -> (Vec<u8>, Vec<u8>) {
    let (client, mut accepted) = pair().await;
    let (mut dialled, upstream) = pair().await;
    let (at_client, at_upstream, ended) = tokio::join!(
        exchange(client, up, false),
        exchange(upstream, down, patient),
        relay_streams(&mut accepted, &mut dialled),
    );
    ended.expect("both connections live");
    (at_upstream, at_client)
}

fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
    // A few bytes, and more than the buffers of the relay and of the kernel hold.
    let piece = (any::<u8>(), prop_oneof![1..300_usize, 30_000..400_000_usize])
        .prop_map(|(seed, length)| (0..length).map(|at| seed.wrapping_add((at % 251) as u8)).collect());
    proptest::collection::vec(piece, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn bytes_arrive_unchanged_in_both_directions(up in pieces(), down in pieces(), patient in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (at_upstream, at_client) = runtime.block_on(relayed(&up, &down, patient));
        prop_assert!(at_upstream == up.concat(), "upstream");
        prop_assert!(at_client == down.concat(), "client");
    }
}
