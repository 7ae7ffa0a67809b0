//! A group of devices as a device for decoders: puts each layer's parts on the ranks that have them.
//! Leaves what is computed to the operations.

use super::cut::{inputs_of, outputs_of};
use super::parts::{TensorActs, TensorLinear, TensorPages, TensorParts};
use super::shares::{HeadShare, even, inner, kv_share};
use super::{RankError, Tensor, TensorOps, each};
use crate::{
    ActsRole, BlockLinear, DecoderDevice, DecoderOps, HeadShape, KvFormat, KvShape, Place, Role, RopeSource, SharedOps,
};
use std::ops::{Deref, Range};

type Ops<A> = <<A as Deref>::Target as DecoderDevice>::Ops;
type Error<A> = RankError<<<A as Deref>::Target as DecoderDevice>::Error>;

impl<A: Deref<Target: DecoderDevice>> Tensor<A>
where
    Ops<A>: SharedOps,
{
    /// The operations of all ranks as those of one device.
    ///
    /// Where the ranks can add parts of sums on the devices they do, once it is seen that this gives the bits of a sum on the host.
    pub fn ops(&self, ranks: Vec<Ops<A>>) -> TensorOps<Ops<A>> {
        assert_eq!(ranks.len(), self.ranks.len(), "operations of each rank");
        let mut ops = TensorOps::new(ranks);
        ops.join(|columns| self.acts_for(ActsRole::Hidden, columns));
        ops
    }

    /// What a rank has of a linear layer, and what that is there.
    fn part(&self, rank: usize, role: Role, source: &BlockLinear) -> (Role, Option<BlockLinear>) {
        let count = self.ranks.len();
        match role {
            Role::Vocabulary => (role, outputs_of(source, &[even(source.outputs(), count, rank)])),
            Role::Qkv(shape) => {
                let HeadShape { heads, kv_heads, head_size } = shape;
                assert_eq!(source.outputs(), (heads + 2 * kv_heads) * head_size, "queries, keys and values");
                let share = HeadShare::of(shape, count, rank);
                let from =
                    |first: usize, of: &Range<usize>| (first + of.start) * head_size..(first + of.end) * head_size;
                let ranges =
                    [from(0, &share.heads), from(heads, &share.kv_heads), from(heads + kv_heads, &share.kv_heads)];
                (Role::Qkv(share.shape(shape)), outputs_of(source, &ranges).filter(|_| !share.is_empty()))
            }
            Role::Attended(shape) => {
                let share = HeadShare::of(shape, count, rank);
                let inputs = share.heads.start * shape.head_size..share.heads.end * shape.head_size;
                (Role::Attended(share.shape(shape)), inputs_of(source, inputs, rank == 0))
            }
            Role::Gates => {
                let half = source.outputs() / 2;
                let own = inner(half, count, rank);
                (role, outputs_of(source, &[own.clone(), half + own.start..half + own.end]))
            }
            Role::Gated => (role, inputs_of(source, inner(source.inputs(), count, rank), rank == 0)),
        }
    }
}

impl<A: Deref<Target: DecoderDevice>> DecoderDevice for Tensor<A>
where
    Ops<A>: SharedOps,
{
    type Error = Error<A>;
    type Ops = TensorOps<Ops<A>>;

    fn block_linear(&self, source: BlockLinear) -> Result<<Self::Ops as DecoderOps>::Linear, Self::Error> {
        self.linear_at(Place::TiedTable, Role::Vocabulary, source)
    }

    fn rms_norm(&self, gain: Vec<f32>, epsilon: f32) -> Result<<Self::Ops as DecoderOps>::Norm, Self::Error> {
        self.norm_at(Place::TiedTable, gain, epsilon)
    }

    fn linear_at(
        &self,
        place: Place,
        role: Role,
        source: BlockLinear,
    ) -> Result<<Self::Ops as DecoderOps>::Linear, Self::Error> {
        let mut ends = Vec::new();
        let ranks = each(&self.ranks, |rank, device| {
            let (role, part) = self.part(rank, role, &source);
            ends.push(ends.last().unwrap_or(&0) + part.as_ref().map_or(0, BlockLinear::outputs));
            part.map(|part| device.linear_at(place, role, part)).transpose()
        })?;
        Ok(TensorLinear { ranks, ends })
    }

    fn norm_at(
        &self,
        place: Place,
        gain: Vec<f32>,
        epsilon: f32,
    ) -> Result<<Self::Ops as DecoderOps>::Norm, Self::Error> {
        Ok(TensorParts(each(&self.ranks, |_, device| device.norm_at(place, gain.clone(), epsilon))?))
    }

    fn rope(&self, source: RopeSource) -> Result<<Self::Ops as DecoderOps>::Rope, Self::Error> {
        Ok(TensorParts(each(&self.ranks, |_, device| device.rope(source.clone()))?))
    }

    fn pages(&self, shape: KvShape, most: usize) -> Result<<Self::Ops as DecoderOps>::Pages, Self::Error> {
        self.pages_in(KvFormat::default(), shape, most)
    }

    fn pages_in(
        &self,
        format: KvFormat,
        shape: KvShape,
        most: usize,
    ) -> Result<<Self::Ops as DecoderOps>::Pages, Self::Error> {
        let own = |rank| KvShape { kv_heads: kv_share(shape.kv_heads, self.ranks.len(), rank).len(), ..shape };
        Ok(TensorPages { ranks: each(&self.ranks, |rank, device| device.pages_in(format, own(rank), most))? })
    }

    /// Where one rank has too little memory, those before it keep what they got: pages that no sequence is told of.
    fn grow_pages(&self, pages: &mut <Self::Ops as DecoderOps>::Pages, count: usize) -> Result<(), Self::Error> {
        for (rank, (device, pages)) in self.ranks.iter().zip(&mut pages.ranks).enumerate() {
            device.grow_pages(pages, count).map_err(|error| RankError { rank, error })?;
        }
        Ok(())
    }

    fn decoder_acts(&self, columns: usize) -> <Self::Ops as DecoderOps>::Acts {
        self.acts_for(ActsRole::Hidden, columns)
    }

    fn acts_for(&self, role: ActsRole, columns: usize) -> <Self::Ops as DecoderOps>::Acts {
        let count = self.ranks.len();
        // Heads, and columns, of a rank.
        let share = |rank| match role {
            ActsRole::Hidden => (0, columns, role),
            ActsRole::Qkv(shape) => {
                let own = HeadShare::of(shape, count, rank);
                let shape = own.shape(shape);
                let columns = if own.is_empty() { 0 } else { (shape.heads + 2 * shape.kv_heads) * shape.head_size };
                (shape.heads, columns, ActsRole::Qkv(shape))
            }
            ActsRole::Attended(shape) => {
                let shape = HeadShare::of(shape, count, rank).shape(shape);
                (shape.heads, shape.heads * shape.head_size, ActsRole::Attended(shape))
            }
            ActsRole::Gated => (0, inner(columns, count, rank).len(), role),
        };
        let own = |rank: usize| {
            let (_, columns, role) = share(rank);
            (columns > 0).then(|| self.ranks[rank].acts_for(role, columns))
        };
        let sums = || self.ranks.iter().filter(|_| role == ActsRole::Hidden);
        TensorActs {
            ranks: (0..count).map(own).collect(),
            sums: [(); 2].map(|()| sums().map(|device| device.acts_for(role, columns)).collect()),
            heads: (0..count).map(|rank| share(rank).0).collect(),
            columns,
            rows: 0,
        }
    }
}
