//! Rows of texts that were computed before, by model and tokens: the same text is not computed twice, also not twice at once.
//! Holds no text and no token. Bounded by entries and bytes; what was used least recently goes first.

mod entries;
mod join;

pub use join::Asked;

use super::{Engine, Output, Work};
use crate::tokenize::Encoded;
use entries::{Entries, Known, Shard};
use futures_channel::oneshot;
use join::{Leading, Place};
use magray_core::schedule::Allowed;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of all rows at most, whatever the number of entries.
const BYTES_MAX: usize = 512 << 20;
/// Threads that look up at once seldom wait for each other.
const SHARDS: usize = 16;

/// A text of a model, as 128 bits of a hash with keys that no client knows.
type Key = (u64, u64);

/// What becomes of a row that is being computed; `None`: nothing, compute it yourself.
type Follower = oneshot::Sender<Option<Arc<Known>>>;

/// Remembers rows of texts.
#[derive(Debug)]
pub struct TextCache {
    shards: Vec<Mutex<Shard>>,
    hashers: (RandomState, RandomState),
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What a cache has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Texts that were answered without computing them.
    pub hits: u64,
    /// Texts that were computed.
    pub misses: u64,
    /// Texts that are known.
    pub entries: u64,
    /// Bytes of their rows.
    pub bytes: u64,
}

impl TextCache {
    /// Room for this many texts; 0: every text is computed.
    pub fn new(entries_max: usize) -> Arc<Self> {
        let shards = SHARDS.min(entries_max.div_ceil(2));
        let shard = || {
            let entries = Entries::new(entries_max / shards, BYTES_MAX / shards);
            Mutex::new(Shard { entries, computing: HashMap::new() })
        };
        Arc::new(Self {
            shards: std::iter::repeat_with(shard).take(shards).collect(),
            hashers: (RandomState::new(), RandomState::new()),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    /// What it has done and holds.
    pub fn usage(&self) -> CacheUse {
        let mut usage = CacheUse {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            ..CacheUse::default()
        };
        for shard in &self.shards {
            let (entries, bytes) = lock(shard).entries.size();
            usage.entries += entries as u64;
            usage.bytes += bytes as u64;
        }
        usage
    }

    /// Queues what is not known of the work; the answer has rows for all of it. Work for a certain device, and rows of tokens, are
    /// computed in any case.
    pub fn ask(self: &Arc<Self>, engine: &Engine, mut work: Work) -> Asked {
        let is_kept = matches!(work.output, Output::Texts | Output::Unscaled) && work.allowed == Allowed::Any;
        if self.shards.is_empty() || work.texts.is_empty() || !is_kept {
            return Asked::direct(engine.ask(work));
        }
        let tokens = work.tokens();
        let mut leading = Leading::new(Arc::clone(self));
        let texts = std::mem::take(&mut work.texts);
        let places: Vec<Place> = texts.into_iter().map(|text| self.place(&work, text, &mut leading)).collect();
        let hits = places.iter().filter(|place| matches!(place, Place::Known(_))).count();
        self.hits.fetch_add(hits as u64, Ordering::Relaxed);
        self.misses.fetch_add((places.len() - hits) as u64, Ordering::Relaxed);
        join::join(engine, work, places, leading, tokens)
    }

    /// Where the row of a text comes from.
    fn place(&self, work: &Work, text: Encoded, leading: &mut Leading) -> Place {
        let key = self.key(work, &text);
        let mut shard = self.shard(key);
        if let Some(known) = shard.entries.get(key) {
            return Place::Known(known);
        }
        match shard.computing.get_mut(&key) {
            Some(followers) => {
                let (sender, receiver) = oneshot::channel();
                followers.push(sender);
                Place::Follows(text, receiver)
            }
            None => {
                shard.computing.insert(key, Vec::new());
                leading.take_on(key);
                Place::Leads(text)
            }
        }
    }

    fn key(&self, work: &Work, text: &Encoded) -> Key {
        let hash = |state: &RandomState| {
            let mut hasher = state.build_hasher();
            hasher.write_usize(work.model);
            hasher.write_usize(work.skip);
            hasher.write_u8(u8::from(work.output == Output::Unscaled));
            hasher.write_usize(text.ids.len());
            text.ids.iter().chain(&text.type_ids).for_each(|id| hasher.write_u32(*id));
            hasher.finish()
        };
        (hash(&self.hashers.0), hash(&self.hashers.1))
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        lock(&self.shards[key.0 as usize % self.shards.len()])
    }

    /// A text that was being computed is known now, or is not computed.
    fn end(&self, key: Key, known: Option<Arc<Known>>) {
        let mut shard = self.shard(key);
        let followers = shard.computing.remove(&key).unwrap_or_default();
        if let Some(known) = &known {
            shard.entries.put(key, Arc::clone(known));
        }
        drop(shard);
        for follower in followers {
            // One that has left needs nothing.
            let _ = follower.send(known.clone());
        }
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
