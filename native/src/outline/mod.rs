//! A fleet in outline: where requests would be sent and what they would find there, of a fleet of any size, in a thousandth
//! of a simulation's time. Engines are as simulations have them, block by block, and a worker is chosen by the formulas
//! of real decisions (`score`, `plane::choose`) with what those have learnt: what work costs others, and waiting that
//! pays for copies. Left out are reports and frames: what a worker holds is known at once.
//!
//! `load` is what is played, `pool` an engine's blocks, `engine` its steps, `learnt` what decisions learn, `fleet` all of
//! it in time.

pub mod engine;
pub mod fleet;
pub mod learnt;
pub mod load;
pub mod pool;
