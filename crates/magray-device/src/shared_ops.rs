//! What a device needs beside [`DecoderOps`] to be one of several that share each layer ([`crate::Tensor`]): parts of sums, and how they come
//! together. Says nothing of how a device does that.

use crate::{DecoderOps, StepBatch};
use std::fmt;

/// What a device needs beside [`DecoderOps`] to be one of several that share each layer: sums that are not added yet, their way to the host
/// and back, and where devices read each other's memory, a way without the host.
pub trait SharedOps: DecoderOps {
    /// `out = x * weights + bias`, in 32-bit floats.
    fn linear_sums(&mut self, x: &Self::Acts, weights: &Self::Linear, out: &mut Self::Acts);

    /// `hidden += sums`, normalised before they are added where there is a norm.
    fn add_sums(&mut self, sums: &Self::Acts, norm: Option<&Self::Norm>, hidden: &mut Self::Acts);

    /// Begins all that was asked for since the last rows were taken or written, up to these rows, and waits for nothing.
    fn send_rows(&mut self, steps: &StepBatch<'_>, rows: &Self::Acts);

    /// The rows that were sent, end to end; waits until they are there. The step goes on with [`DecoderOps::write_hidden`]. Where it failed it
    /// launches nothing up to its answer, which tells the failure again.
    fn take_rows<'a>(&'a mut self, rows: &'a Self::Acts) -> Result<&'a [f32], Self::Error>;

    /// Lets ranks add their parts on the devices from now on, with [`SharedOps::sum_parts`], or says why they cannot. Their parts have no
    /// rows yet.
    fn join(_ranks: &mut [Self]) -> Result<(), String>
    where
        Self: Sized,
    {
        Err("these devices do not read each other's memory".to_owned())
    }

    /// Takes back what [`SharedOps::join`] let them do.
    fn leave(&mut self) {}

    /// As [`DecoderOps::resize`], of parts that the other ranks read.
    fn resize_parts(&mut self, parts: &mut Self::Acts, rows: usize) {
        self.resize(parts, rows);
    }

    /// `hidden += parts` on every rank, added in the order of the ranks to zero, and normalised before they are added where there is a norm:
    /// the bits of a sum on the host. For ranks that were joined; waits for nothing, and may put off all that was asked for until
    /// [`SharedOps::catch_up`]. Parts may be written again behind the next sum of others. `false`: a rank has failed, no part was added
    /// anywhere, and no rank reads one any more.
    fn sum_parts(_ranks: &mut [Self], _: PartSums<'_, Self>) -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Begins what sums have put off, before a single rank is asked for rows or logits. `false`: a rank has failed.
    fn catch_up(_ranks: &mut [Self]) -> bool
    where
        Self: Sized,
    {
        true
    }
}

/// Parts of sums on all ranks, and what they are added to.
pub struct PartSums<'a, O: DecoderOps> {
    /// What each rank has, of equal rows and columns.
    pub parts: &'a [O::Acts],
    /// Whether a rank has a part.
    pub has_part: &'a [bool],
    /// The norm on each rank, where there is one.
    pub norms: Option<&'a [O::Norm]>,
    /// The residual stream on each rank.
    pub hidden: &'a mut [Option<O::Acts>],
}

/// Where parts of sums come together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SumsPlace {
    /// On the devices, each of which reads the parts of the others.
    Devices,
    /// On the host, for this reason.
    Host(String),
}

impl fmt::Display for SumsPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Devices => f.write_str("device"),
            Self::Host(reason) => write!(f, "host ({reason})"),
        }
    }
}
