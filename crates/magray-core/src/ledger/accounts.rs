//! The accounts of one device: grants, returns, and what reports change of them.
//! A grant that does not fit is refused; what is held beyond the capacity after a report is for the caller to evict.

use super::{MemoryReport, Owner};
use crate::moment::Moment;
use std::collections::BTreeMap;

/// The part of the capacity that is kept for passes, where they do not take more.
const WORKSPACE_PART: u64 = 16;
/// A capacity that has changed by less than this part of itself says nothing new after memory ran out.
const NOISE_PART: u64 = 256;

/// What is known of a device's memory before anything is reported, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// What may be used of it at most, whatever is reported.
    pub memory_max: u64,
    /// What the driver takes of that.
    pub context: u64,
    /// What is reserved of that for the state of sequences.
    pub kv_max: u64,
}

impl Budget {
    /// Memory without a bound, and none for the state of sequences.
    pub const UNBOUNDED: Self = Self { memory_max: u64::MAX, context: 0, kv_max: 0 };
}

/// What is missing for a grant, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing(pub u64);

/// Room that weights or vectors need, beside others that come or go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// How much.
    pub bytes: u64,
    /// What is meant for others and not granted yet.
    pub promised: u64,
    /// What will be returned before.
    pub leaving: u64,
}

/// The memory of one device.
#[derive(Clone, Debug)]
pub struct Ledger {
    budget: Budget,
    capacity: u64,
    accounts: BTreeMap<Owner, u64>,
    /// Of weights and vectors together. Sums are exact whatever is reported.
    room_used: u128,
    kv_used: u128,
    /// What weights and vectors are believed to have room for, and until when, after memory ran out.
    belief: Option<Belief>,
    #[cfg(feature = "sabotage")]
    fraud: Option<Fraud>,
}

/// Ways to break a ledger on purpose.
#[cfg(feature = "sabotage")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fraud {
    /// What is returned stays in its account.
    Leak,
    /// What is granted is booked twice.
    Double,
    /// Weights and vectors are granted whatever there is.
    NoBounds,
    /// The same of the state of sequences.
    NoKvBounds,
    /// Reports are not taken.
    Deaf,
}

#[cfg(feature = "sabotage")]
macro_rules! commits {
    ($ledger:expr, $fraud:ident) => {
        $ledger.fraud == Some(Fraud::$fraud)
    };
}

#[cfg(not(feature = "sabotage"))]
macro_rules! commits {
    ($ledger:expr, $fraud:ident) => {
        false
    };
}

#[derive(Clone, Copy, Debug)]
struct Belief {
    room: u64,
    until: Moment,
    /// What the capacity was.
    capacity: u64,
}

impl Ledger {
    /// The ledger of a device of which nothing is reported.
    pub fn new(budget: Budget) -> Self {
        let mut ledger = Self {
            budget,
            capacity: budget.memory_max,
            accounts: BTreeMap::new(),
            room_used: 0,
            kv_used: 0,
            belief: None,
            #[cfg(feature = "sabotage")]
            fraud: None,
        };
        ledger.clear();
        ledger
    }

    /// All that may be used, by everybody together.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What an owner has.
    pub fn balance(&self, owner: Owner) -> u64 {
        self.accounts.get(&owner).copied().unwrap_or(0)
    }

    /// Everybody who has something.
    pub fn accounts(&self) -> impl Iterator<Item = (Owner, u64)> {
        self.accounts.iter().map(|(&owner, &bytes)| (owner, bytes))
    }

    /// What weights and vectors may have together.
    pub fn room(&self) -> u64 {
        if commits!(self, NoBounds) {
            return u64::MAX;
        }
        let workspace = self.balance(Owner::Workspace).max(self.capacity / WORKSPACE_PART);
        self.room_at_most().saturating_sub(workspace)
    }

    /// What they have.
    pub fn room_used(&self) -> u64 {
        clamped(self.room_used)
    }

    /// What the state of sequences has.
    pub fn kv_used(&self) -> u64 {
        clamped(self.kv_used)
    }

    /// What it may have beyond that.
    pub fn kv_free(&self) -> u64 {
        if commits!(self, NoKvBounds) {
            return u64::MAX;
        }
        self.kv_share().saturating_sub(self.kv_used())
    }

    /// What weights and vectors have beyond what there is. No owner is evicted for the sake of the workspace: a worker that finds
    /// too little for a pass computes less at a time.
    pub fn overdrawn(&self) -> u64 {
        self.room_used().saturating_sub(self.room_at_most())
    }

    /// What is missing of the room for weights or vectors; 0 where it can be granted. After memory ran out less is believed
    /// to be there, but one owner alone is worth a try.
    pub fn missing(&self, need: Need, now: Moment) -> u64 {
        let taken = self.room_used().saturating_add(need.promised).saturating_sub(need.leaving);
        let all = taken.saturating_add(need.bytes);
        let believed =
            self.belief.filter(|belief| now < belief.until && taken > 0).map_or(u64::MAX, |belief| belief.room);
        all.saturating_sub(self.room().min(believed))
    }

    /// When less is no longer believed to be there than was reported.
    pub fn believed_until(&self) -> Option<Moment> {
        self.belief.map(|belief| belief.until)
    }

    /// Grants an owner so much more, or says what is missing.
    pub fn grant(&mut self, owner: Owner, bytes: u64, now: Moment) -> Result<(), Missing> {
        let missing = match owner {
            Owner::Weights(_) | Owner::Vectors(_) => self.missing(Need { bytes, ..Need::default() }, now),
            Owner::Kv(_) => bytes.saturating_sub(self.kv_free()),
            Owner::Context | Owner::Workspace => panic!("{owner:?} is reported, not granted"),
        };
        if missing > 0 {
            return Err(Missing(missing));
        }
        let booked = if commits!(self, Double) { bytes.saturating_mul(2) } else { bytes };
        self.set(owner, self.balance(owner).saturating_add(booked));
        Ok(())
    }

    /// An owner returns so much. More than it has is a bug.
    pub fn give_back(&mut self, owner: Owner, bytes: u64) {
        let balance = self.balance(owner);
        assert!(bytes <= balance, "{owner:?} returns {bytes} of {balance}");
        self.set(owner, balance - bytes);
    }

    /// An owner returns all that it has.
    pub fn close(&mut self, owner: Owner) -> u64 {
        let balance = self.balance(owner);
        if !commits!(self, Leak) {
            self.set(owner, 0);
        }
        balance
    }

    /// It was measured what an owner has: that is so, granted or not.
    pub fn set(&mut self, owner: Owner, bytes: u64) {
        let before = if bytes == 0 { self.accounts.remove(&owner) } else { self.accounts.insert(owner, bytes) };
        let total = match owner {
            Owner::Weights(_) | Owner::Vectors(_) => &mut self.room_used,
            Owner::Kv(_) => &mut self.kv_used,
            Owner::Context | Owner::Workspace => return,
        };
        *total = *total - u128::from(before.unwrap_or(0)) + u128::from(bytes);
    }

    /// Takes what a worker reports: the capacity, what passes and the driver hold, and weights that take more than was
    /// granted. What it holds less stays granted: it may be on its way. Returns whether the room has changed.
    pub fn reconcile(&mut self, report: &MemoryReport) -> bool {
        if commits!(self, Deaf) {
            return false;
        }
        let before = (self.room(), self.overdrawn());
        self.capacity = report.capacity().min(self.budget.memory_max);
        for owner in [Owner::Context, Owner::Workspace] {
            self.set(owner, report.held_by(owner));
        }
        for &(owner, bytes) in &report.held {
            let balance = self.balance(owner);
            if matches!(owner, Owner::Weights(_) | Owner::Vectors(_)) && 0 < balance && balance < bytes {
                self.set(owner, bytes);
            }
        }
        let says_otherwise = |belief: &Belief| self.capacity.abs_diff(belief.capacity) > belief.capacity / NOISE_PART;
        if self.belief.as_ref().is_some_and(says_otherwise) {
            self.belief = None;
        }
        before != (self.room(), self.overdrawn())
    }

    /// Memory ran out although the ledger had granted it: until then, or until a report says otherwise, there is believed to
    /// be no more room than is used.
    pub fn out_of_memory(&mut self, until: Moment) {
        self.belief = Some(Belief { room: self.room_used(), until, capacity: self.capacity });
    }

    /// The worker is gone, and with it all that it had and reported.
    pub fn clear(&mut self) {
        self.capacity = self.budget.memory_max;
        self.accounts.clear();
        (self.room_used, self.kv_used) = (0, 0);
        self.belief = None;
        self.set(Owner::Context, self.budget.context);
    }

    /// Breaks it on purpose, for tests of tests.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&mut self, fraud: Fraud) {
        self.fraud = Some(fraud);
    }

    /// The room where passes take nothing.
    fn room_at_most(&self) -> u64 {
        self.capacity.saturating_sub(self.balance(Owner::Context)).saturating_sub(self.kv_share())
    }

    /// What the state of sequences may have in all.
    pub fn kv_share(&self) -> u64 {
        self.budget.kv_max.min(self.capacity.saturating_sub(self.balance(Owner::Context)))
    }
}

fn clamped(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}
