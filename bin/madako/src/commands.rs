//! The operator's commands, with the words, outputs and stored bytes of ckecli; for placement, with the words of
//! krakectl.

pub(crate) mod auto_repair;
pub(crate) mod bootstrap;
pub(crate) mod ca;
pub(crate) mod cluster;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod constraints;
pub(crate) mod doctor;
pub(crate) mod etcd;
pub(crate) mod history;
pub(crate) mod images;
pub(crate) mod kubernetes;
pub(crate) mod leader;
pub(crate) mod machine;
pub(crate) mod man;
pub(crate) mod node;
pub(crate) mod ops;
pub(crate) mod placement;
pub(crate) mod queue;
pub(crate) mod reboot_queue;
pub(crate) mod repair_queue;
pub(crate) mod resource;
pub(crate) mod sabakan;
pub(crate) mod settings;
pub(crate) mod ssh;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod vault;
