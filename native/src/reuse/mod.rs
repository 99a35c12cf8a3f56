//! Reuse distances of one pool's blocks, and the hit ratio that they give at any capacity.
//!
//! A prefix cache frees the tail of a prompt before its head, and so evicts no block before those that follow it: its
//! least-recently-used order is a stack in Mattson's sense ("Evaluation techniques for storage hierarchies", 1970), a
//! cache of C blocks holds the C topmost ones, and a block's place in it is never above that of the blocks before it.
//! So the blocks of a prompt that a cache of C serves are those with a place of at most C, which are its first ones.
//!
//! Blocks are sampled by a hash of their keys, as SHARDS does (Waldspurger and others, FAST 2015), and how many are kept
//! is bounded by dropping what lies deeper than anybody asks. What that paper leaves to chance, a prompt's order tells: of
//! two sampled neighbours in a prompt the blocks between lie between them in the stack, too. So each sampled block stands
//! for those nearest to it; a prompt's first one is always looked at, so that each prompt counts whole. Where a prompt
//! left what was known lies between two samples: an earlier prompt's end tells, or what was served, else it is halfway.
//!
//! `stack` is the order, `histogram` what was found at which place, `distances` one pool's.

pub mod distances;
pub mod histogram;
pub mod stack;
