//! The wire format of all resources: what Krake writes is read and written back, what no request may bring is
//! refused by name, and whatever is stored is read.

mod documents;
mod krake;
mod krakectl;
mod properties;
mod requests;
mod site;
mod stored;
mod update;
