//! How the parts of sums that ranks have come together: on the devices where these were seen to give the bits of a sum on the host, else on
//! the host. Adds nothing on a device itself.

use super::TensorOps;
use crate::tensor::RankError;
use crate::tensor::parts::TensorActs;
use crate::{PartSums, SharedOps, SumsPlace};

impl<O: SharedOps> TensorOps<O> {
    /// Where parts of sums come together; none for a rank alone, which has no parts.
    pub fn sums(&self) -> Option<&SumsPlace> {
        (self.ranks.len() > 1).then_some(&self.place)
    }

    /// Parts of sums come together on the host from now on.
    pub fn sum_on_host(&mut self, reason: impl Into<String>) {
        self.ranks.iter_mut().for_each(O::leave);
        self.turn = 0;
        self.place = SumsPlace::Host(reason.into());
    }

    /// Parts come together on the devices from now on, where these can and where it was tried. `acts` makes a residual stream of this many
    /// columns.
    pub(in crate::tensor) fn join(&mut self, acts: impl Fn(usize) -> TensorActs<O::Acts>) {
        if self.ranks.len() < 2 {
            return;
        }
        if let Err(reason) = O::join(&mut self.ranks).and_then(|()| self.try_sums(acts)) {
            self.sum_on_host(reason);
        }
    }

    /// Room for the parts of this many rows.
    pub(super) fn resize_parts(&mut self, acts: &mut TensorActs<O::Acts>, rows: usize) {
        let rooms = if self.place == SumsPlace::Devices { 2 } else { 1 };
        for sums in &mut acts.sums[..rooms] {
            for (ops, sums) in self.ranks.iter_mut().zip(sums) {
                ops.resize_parts(sums, rows);
            }
        }
    }

    /// `hidden += parts` on every rank, of the parts that ranks have left last; normalised before they are added where there is a norm.
    pub(super) fn add_up(&mut self, hidden: &mut TensorActs<O::Acts>, norms: Option<&[O::Norm]>, has_part: &[bool]) {
        let TensorActs { ranks, sums, columns, .. } = hidden;
        let parts = &mut sums[self.turn];
        if self.place == SumsPlace::Devices {
            self.turn = 1 - self.turn;
            if O::sum_parts(&mut self.ranks, PartSums { parts, has_part, norms, hidden: ranks }) {
                return;
            }
        }
        self.reduce(parts, *columns, has_part);
        for (rank, (ops, sums)) in self.ranks.iter_mut().zip(parts).enumerate() {
            if let Some(hidden) = &mut ranks[rank] {
                ops.add_sums(sums, norms.map(|norms| &norms[rank]), hidden);
            }
        }
    }

    /// All ranks begin what was asked of them. Where one has failed all end the pass here, which has no answer.
    pub(super) fn catch_up(&mut self) -> Option<RankError<O::Error>> {
        if O::catch_up(&mut self.ranks) {
            return None;
        }
        for (rank, ops) in self.ranks.iter_mut().enumerate() {
            if let Err(error) = ops.answer() {
                self.failure.get_or_insert(RankError { rank, error });
            }
        }
        self.failure.take()
    }

    /// Adds parts on the host in the order of their ranks, and gives the sums to all. What a rank that failed would have added is left out: the
    /// pass has no answer, but every rank ends it.
    fn reduce(&mut self, parts: &mut [O::Acts], columns: usize, has_part: &[bool]) {
        let Self { ranks, batch, failure, rows, .. } = self;
        let steps = batch.steps();
        for (ops, part) in ranks.iter_mut().zip(&*parts) {
            ops.send_rows(&steps, part);
        }
        rows.clear();
        rows.resize(steps.tokens() * columns, 0.0);
        for (rank, (ops, part)) in ranks.iter_mut().zip(&*parts).enumerate() {
            match ops.take_rows(part) {
                Ok(own) if has_part[rank] => rows.iter_mut().zip(own).for_each(|(sum, own)| *sum += own),
                Ok(_) => {}
                Err(error) => drop(failure.get_or_insert(RankError { rank, error })),
            }
        }
        for (ops, part) in ranks.iter_mut().zip(parts) {
            ops.write_hidden(&steps, rows, part);
        }
    }
}
