//! Reuse distances of one pool's blocks, and the hit ratio that they give at any capacity.
//!
//! A prefix cache frees the tail of a prompt before its head, and so evicts no block before those that follow it: its
//! least-recently-used order is a stack in Mattson's sense ("Evaluation techniques for storage hierarchies", 1970), a
//! cache of C blocks holds the C topmost ones, and a block's place in it is never above that of the blocks before it.
//! So the blocks of a prompt that a cache of C serves are those with a place of at most C, which are its first ones.
//!
//! Blocks are sampled by a hash of their keys, as SHARDS does (Waldspurger and others, FAST 2015), and each stands for as
//! many; how many are kept is bounded by dropping what lies deeper than anybody asks. A block that nearly all prompts
//! have is in the sample or not, by chance: so the sample has more or fewer of the blocks that were asked for than its
//! share, and the difference counts as found at the top (that paper's SHARDS-adj). The answer to a prompt is sampled as
//! one, by a hash of its end.
//!
//! `stack` is the order, `histogram` what was found at which place, `distances` one pool's.

pub mod distances;
pub mod histogram;
pub mod stack;
