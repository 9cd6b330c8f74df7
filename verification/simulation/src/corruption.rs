//! Makes wrong answers of the simulated registry; the seed decides the fault of each answer.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use madako_datacenter_sim::{Fault, FaultSwitch};
use madako_protocol::ports::{HttpError, HttpRequest, HttpResponse, HttpTransport};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

/// The faults: truncated, malformed, of wrong types, empty, incomplete, or an error.
const WAYS: [Fault; 10] = [
    Fault::TruncateBody,
    Fault::MalformedJson,
    Fault::WrongTypes,
    Fault::EmptyList,
    Fault::NullList,
    Fault::ShrinkList(40),
    Fault::WithoutAddress(5),
    Fault::GraphQlError,
    Fault::PartialData,
    Fault::Status(500),
];

struct CorruptionState {
    chance: ChaCha8Rng,
    on: bool,
    present: Option<Fault>,
}

/// Switch for wrong answers. Clones share their state.
#[derive(Clone)]
pub struct Corruption {
    inner: Arc<Mutex<CorruptionState>>,
    faults: FaultSwitch,
}

impl Corruption {
    /// Answers are correct at first. `faults` is the registry's own switch.
    #[must_use]
    pub fn new(faults: FaultSwitch, seed: u64) -> Self {
        let chance = ChaCha8Rng::seed_from_u64(seed ^ 0x636f_7272_7570_7421);
        Self { inner: Arc::new(Mutex::new(CorruptionState { chance, on: false, present: None })), faults }
    }

    /// Makes each answer wrong in its own way, or correct again.
    pub fn set(&self, on: bool) {
        let mut inner = self.inner.lock().unwrap();
        inner.on = on;
        if let Some(present) = inner.present.take().filter(|_| !on) {
            self.faults.clear(&present);
        }
    }

    /// A transport to the registry that draws a new fault before each request.
    pub fn spoil_transport<T>(&self, inner: Arc<T>) -> CorruptedTransport<T> {
        CorruptedTransport { inner, corruption: self.clone() }
    }

    fn draw(&self) {
        let mut inner = self.inner.lock().unwrap();
        if !inner.on {
            return;
        }
        let next = WAYS[inner.chance.random_range(0..WAYS.len())].clone();
        if let Some(present) = inner.present.replace(next.clone()) {
            self.faults.clear(&present);
        }
        self.faults.set(next);
    }
}

/// See [`Corruption::spoil_transport`].
pub struct CorruptedTransport<T> {
    inner: Arc<T>,
    corruption: Corruption,
}

#[async_trait]
impl<T: HttpTransport> HttpTransport for CorruptedTransport<T> {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.corruption.draw();
        self.inner.send(request).await
    }
}
