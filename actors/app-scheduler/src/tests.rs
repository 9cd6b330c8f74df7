//! Rules by example, and what holds whatever the input is.

mod applications;
mod backends;
mod explanations;
mod garbage;
mod properties;
