//! Faults of a simulated registry, switched on and off while it runs.

use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// A fault of the registry or of the connection to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// New connections are refused and open ones are cut.
    RefuseConnections,
    /// No answer arrives until the fault is cleared; clients reach their deadline.
    Hang,
    /// Each answer is delayed by this time.
    Slow(Duration),
    Status(u16),
    /// Each answer redirects the client to this URL.
    Redirect(String),
    /// Each answer carries a GraphQL error and no data.
    GraphQlError,
    /// Each answer carries a GraphQL error beside its data.
    PartialData,
    /// The connection closes in the middle of each answer.
    TruncateBody,
    /// Each answer is a complete HTTP exchange whose JSON ends in the middle.
    MalformedJson,
    /// Numbers are sent as strings and strings as numbers.
    WrongTypes,
    /// The answer never ends.
    EndlessBody,
    EmptyList,
    /// The list of machines is `null`, Go's encoding of a nil slice.
    NullList,
    /// This percentage of the machines is missing, beginning with the first by serial.
    ShrinkList(u8),
    /// This many machines, beginning with the first by serial, have the address of their successor.
    DuplicateAddresses(usize),
    /// This many machines, beginning with the first by serial, have no address.
    WithoutAddress(usize),
    /// This percentage of the machines, beginning with the last by serial, is shown as unreachable while healthy.
    FalseReports(u8),
    /// The registry's clock is off by this many seconds: each state seems to last longer or shorter by that time.
    ClockSet(i32),
}

/// A handle on the active faults. Clones share the same switch.
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
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault; replaces a fault of the same kind.
    pub fn set(&self, fault: Fault) {
        self.present.send_modify(|present| {
            present.retain(|other| discriminant(other) != discriminant(&fault));
            present.push(fault);
        });
    }

    /// Clears the fault of the same kind as `fault`; its parameter is ignored.
    pub fn clear(&self, fault: &Fault) {
        self.present.send_modify(|present| {
            present.retain(|other| discriminant(other) != discriminant(fault));
        });
    }

    pub fn clear_all(&self) {
        self.present.send_modify(Vec::clear);
    }

    /// The active faults, in the order in which they were set.
    #[must_use]
    pub fn present_faults(&self) -> Vec<Fault> {
        self.present.borrow().clone()
    }

    pub(crate) fn is_refusing(&self) -> bool {
        self.present.borrow().contains(&Fault::RefuseConnections)
    }

    /// Returns when connections are refused (`true`) or accepted (`false`).
    pub(crate) async fn wait_until_refusing(&self, refusing: bool) {
        self.wait_until(|present| present.contains(&Fault::RefuseConnections) == refusing).await;
    }

    /// Waits for [`Fault::Slow`], then for the end of [`Fault::Hang`].
    pub(crate) async fn wait_for_faults(&self) {
        self.sleep_while_slow().await;
        self.wait_until_no_hang().await;
    }

    /// Waits for the delay of [`Fault::Slow`], if it is set.
    pub(crate) async fn sleep_while_slow(&self) {
        let slow = self.present.borrow().iter().find_map(|fault| match fault {
            Fault::Slow(by) => Some(*by),
            _ => None,
        });
        if let Some(by) = slow {
            tokio::time::sleep(by).await;
        }
    }

    /// Returns when [`Fault::Hang`] is not set.
    pub(crate) async fn wait_until_no_hang(&self) {
        self.wait_until(|present| !present.contains(&Fault::Hang)).await;
    }

    async fn wait_until(&self, mut is_so: impl FnMut(&[Fault]) -> bool) {
        let mut changes = self.present.subscribe();
        changes
            .wait_for(|present| is_so(present))
            .await
            .expect("the sender lives as long as the switch that is borrowed here");
    }
}
