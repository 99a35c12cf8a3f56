//! An index into bytes.

use super::super::Index;
use super::super::arena::Arena;
use super::super::runs::Run;
use super::super::sets::SetId;
use super::super::spans::{Piece, pieces};
use super::super::tier::Tier;
use super::{HEAD, MAGIC, VERSION, checksum, slots};
use std::collections::HashMap;

impl Index {
    /// Everything it holds.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut body = Writer::new(self);
        body.workers();
        body.sets();
        for tier in &self.tiers {
            body.runs(tier);
        }
        body.finish()
    }
}

struct Writer {
    out: Vec<u8>,
    /// Place of each live set, by its number; sets of forgotten workers alone have none.
    sets: HashMap<SetId, u32>,
    members: Vec<Vec<u32>>,
    names: Vec<String>,
}

impl Writer {
    fn new(index: &Index) -> Self {
        let mut listed: Vec<(&str, u32)> = index.workers.iter().collect();
        listed.sort_unstable();
        let mut places = vec![0; index.workers.slots()];
        for (place, (_, slot)) in (0..).zip(&listed) {
            places[*slot as usize] = place;
        }
        let mut writer = Self {
            out: vec![0; HEAD],
            sets: HashMap::new(),
            members: Vec::new(),
            names: listed.iter().map(|(name, _)| (*name).to_owned()).collect(),
        };
        for tier in &index.tiers {
            for number in 0..tier.runs.len() {
                for span in tier.runs[number].spans() {
                    writer.learn(index, &places, span.set);
                }
            }
        }
        writer
    }

    fn learn(&mut self, index: &Index, places: &[u32], set: SetId) {
        if self.sets.contains_key(&set) {
            return;
        }
        let mut members: Vec<u32> =
            slots(&index.sets, set, index.workers.live()).map(|slot| places[slot as usize]).collect();
        if !members.is_empty() {
            members.sort_unstable();
            self.sets.insert(set, count(self.members.len()));
            self.members.push(members);
        }
    }

    fn number(&mut self, number: usize) {
        self.out.extend(count(number).to_le_bytes());
    }

    fn workers(&mut self) {
        let names = std::mem::take(&mut self.names);
        self.number(names.len());
        for name in names {
            self.number(name.len());
            self.out.extend(name.as_bytes());
        }
    }

    fn sets(&mut self) {
        let sets = std::mem::take(&mut self.members);
        self.number(sets.len());
        for members in sets {
            self.number(members.len());
            self.out.extend(members.iter().flat_map(|member| member.to_le_bytes()));
        }
    }

    fn runs(&mut self, tier: &Tier) {
        let start = self.out.len();
        self.number(0);
        let mut written = 0;
        for run in (0..tier.runs.len()).map(|number| &tier.runs[number]) {
            written += usize::from(self.run(&tier.arena, run));
        }
        self.out[start..start + 4].copy_from_slice(&count(written).to_le_bytes());
    }

    /// False where nobody alive holds any of it.
    fn run(&mut self, arena: &Arena, run: &Run) -> bool {
        let live: Vec<Piece> =
            pieces(run.spans(), 0, run.len()).filter(|piece| self.sets.contains_key(&piece.set)).collect();
        if live.is_empty() {
            return false;
        }
        self.number(live.iter().map(|piece| piece.len() as usize).sum());
        self.number(live.len());
        let mut end = 0;
        for piece in &live {
            end += piece.len() as usize;
            self.number(end);
            self.number(self.sets[&piece.set] as usize);
        }
        let keys = live.iter().flat_map(|piece| run.slices(arena, piece.start, piece.end)).flatten();
        self.out.extend(keys.flat_map(|key| key.to_le_bytes()));
        true
    }

    fn finish(self) -> Vec<u8> {
        seal(self.out)
    }
}

/// A snapshot of a body, which room for the head comes before: `HEAD` bytes that are filled in here.
#[must_use]
pub fn seal(mut out: Vec<u8>) -> Vec<u8> {
    let body = &out[HEAD..];
    let (length, sum) = (body.len() as u64, checksum(body));
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[16..24].copy_from_slice(&length.to_le_bytes());
    out[24..32].copy_from_slice(&sum.to_le_bytes());
    out
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("bounded by the index's limits")
}
