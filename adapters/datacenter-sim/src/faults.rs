//! What can be wrong with a registry, switched on and off while it runs.

use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// A fault of the registry or of the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No connection can be made, and those that are there are cut.
    RefuseConnections,
    /// No answer comes until the fault is cleared; clients meet their deadline.
    Hang,
    /// Each answer takes so long.
    Slow(Duration),
    /// Each answer has this HTTP status.
    Status(u16),
    /// Each answer sends the client elsewhere.
    Redirect(String),
    /// Each answer carries a GraphQL error and no data.
    GraphQlError,
    /// Each answer carries a GraphQL error beside its data.
    PartialData,
    /// The connection ends in the middle of each answer.
    TruncateBody,
    /// Each answer ends in the middle of its JSON, in an exchange that is whole.
    MalformedJson,
    /// Numbers are texts and texts are numbers.
    WrongTypes,
    /// The answer does not end, as far as a client can see.
    EndlessBody,
    /// No machine is found.
    EmptyList,
    /// The list of machines is `null`, as Go writes an empty one.
    NullList,
    /// So many of a hundred machines are missing, the first by serial.
    ShrinkList(u8),
    /// So many machines, the first by serial, have the address of the one that follows them.
    DuplicateAddresses(usize),
    /// So many machines, the first by serial, have no address.
    WithoutAddress(usize),
    /// So many of a hundred machines, the last by serial, are shown as unreachable although they are healthy.
    FalseReports(u8),
    /// The registry's clock was set by so many seconds: each state seems to last for so much longer, or shorter.
    ClockSet(i32),
}

/// A handle on the faults that are present. Clones are the same switch.
#[derive(Debug, Clone)]
pub struct FaultSwitch {
    present: Arc<watch::Sender<Vec<Fault>>>,
}

impl Default for FaultSwitch {
    fn default() -> Self {
        Self { present: Arc::new(watch::Sender::new(Vec::new())) }
    }
}

impl FaultSwitch {
    /// A switch without faults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault, in place of one of its kind.
    pub fn set(&self, fault: Fault) {
        self.present.send_modify(|present| {
            present.retain(|other| discriminant(other) != discriminant(&fault));
            present.push(fault);
        });
    }

    /// Takes away the fault of the same kind as `fault`, whatever its number.
    pub fn clear(&self, fault: &Fault) {
        self.present.send_modify(|present| {
            present.retain(|other| discriminant(other) != discriminant(fault));
        });
    }

    /// Takes all faults away.
    pub fn clear_all(&self) {
        self.present.send_modify(Vec::clear);
    }

    /// The faults that are present, in the order they were set.
    #[must_use]
    pub fn present(&self) -> Vec<Fault> {
        self.present.borrow().clone()
    }

    pub(crate) fn is_refusing(&self) -> bool {
        self.present.borrow().contains(&Fault::RefuseConnections)
    }

    /// Returns when connections are refused (`true`) or taken (`false`).
    pub(crate) async fn until_refusing(&self, refusing: bool) {
        self.until(|present| present.contains(&Fault::RefuseConnections) == refusing).await;
    }

    /// Waits as long as the faults of time say.
    pub(crate) async fn delay(&self) {
        self.slow().await;
        self.until_no_hang().await;
    }

    /// Waits as long as each answer takes.
    pub(crate) async fn slow(&self) {
        let slow = self.present.borrow().iter().find_map(|fault| match fault {
            Fault::Slow(by) => Some(*by),
            _ => None,
        });
        if let Some(by) = slow {
            tokio::time::sleep(by).await;
        }
    }

    /// Returns when answers come at all.
    pub(crate) async fn until_no_hang(&self) {
        self.until(|present| !present.contains(&Fault::Hang)).await;
    }

    async fn until(&self, mut is_so: impl FnMut(&[Fault]) -> bool) {
        let mut changes = self.present.subscribe();
        changes
            .wait_for(|present| is_so(present))
            .await
            .expect("the sender lives as long as the switch that is borrowed here");
    }
}
