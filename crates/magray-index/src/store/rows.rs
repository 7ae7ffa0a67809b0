//! The bytes of stored rows: heads of points, payloads, vectors. Each ends with a checksum that covers its place too.
//! Knows no files; a row that does not match its checksum is refused whole.

use crate::{Payload, PointId, Vector};

/// What a checksum covers besides the bytes, so that a row in the wrong place is found as well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// 0: heads, 1: payloads, from 2 on: vectors.
    pub(crate) table: u32,
    pub(crate) slot: u32,
}

impl Place {
    fn checksum(self, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.table.to_le_bytes());
        hasher.update(&self.slot.to_le_bytes());
        hasher.update(bytes);
        hasher.finalize()
    }

    /// Appends the checksum.
    pub(crate) fn seal(self, mut bytes: Vec<u8>) -> Vec<u8> {
        let checksum = self.checksum(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The bytes without their checksum; `None` if they differ from what was sealed.
    pub(crate) fn open(self, sealed: &[u8]) -> Option<&[u8]> {
        let (bytes, checksum) = sealed.split_last_chunk::<4>()?;
        (self.checksum(bytes).to_le_bytes() == *checksum).then_some(bytes)
    }
}

/// The id of a point, and which rows it has, so that one that is lost is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) id: PointId,
    /// A bit for each vector of the collection.
    pub(crate) vectors: u64,
    /// An empty payload has no row.
    pub(crate) has_payload: bool,
}

impl Head {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.vectors.to_le_bytes().to_vec();
        bytes.push(self.has_payload.into());
        match self.id {
            PointId::Number(number) => bytes.extend_from_slice(&number.to_le_bytes()),
            PointId::Uuid(bits) => bytes.extend_from_slice(&bits.to_le_bytes()),
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (vectors, rest) = bytes.split_first_chunk::<8>()?;
        let (has_payload, id) = rest.split_first()?;
        let id = match id.len() {
            8 => PointId::Number(u64::from_le_bytes(id.try_into().ok()?)),
            16 => PointId::Uuid(u128::from_le_bytes(id.try_into().ok()?)),
            _ => return None,
        };
        Some(Self { id, vectors: u64::from_le_bytes(*vectors), has_payload: *has_payload == 1 })
    }
}

pub(crate) fn payload_from_bytes(bytes: &[u8]) -> Option<Payload> {
    serde_json::from_slice(bytes).ok()
}

pub(crate) fn vector_to_bytes(vector: &Vector) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut add = |values: &[f32]| values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    match vector {
        Vector::Dense(values) => add(values),
        Vector::Multi(rows) => rows.iter().for_each(|row| add(row)),
        Vector::Sparse { indices, values } => {
            add(values);
            indices.iter().for_each(|index| bytes.extend_from_slice(&index.to_le_bytes()));
        }
    }
    bytes
}

/// The shape of a vector's bytes, by the settings of the collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Dense { dims: usize },
    Multi { dims: usize },
    Sparse,
}

pub(crate) fn vector_from_bytes(shape: Shape, bytes: &[u8]) -> Option<Vector> {
    match shape {
        Shape::Dense { dims } => (bytes.len() == 4 * dims).then(|| Vector::Dense(floats(bytes))),
        Shape::Multi { dims } => {
            let is_whole = !bytes.is_empty() && bytes.len().is_multiple_of(4 * dims);
            is_whole.then(|| Vector::Multi(bytes.chunks_exact(4 * dims).map(floats).collect()))
        }
        Shape::Sparse => {
            let (values, indices) = bytes.split_at_checked(bytes.len() / 2)?;
            let indices = indices.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
            bytes.len().is_multiple_of(8).then(|| Vector::Sparse { indices, values: floats(values) })
        }
    }
}

/// Reads values into a buffer that is used again; `false` if there is another number of them.
pub(crate) fn floats_into(bytes: &[u8], values: &mut [f32]) -> bool {
    let (found, rest) = bytes.as_chunks::<4>();
    if found.len() != values.len() || !rest.is_empty() {
        return false;
    }
    values.iter_mut().zip(found).for_each(|(value, bytes)| *value = f32::from_le_bytes(*bytes));
    true
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written() {
        for id in [PointId::Number(7), PointId::Uuid(u128::MAX - 3)] {
            let head = Head { id, vectors: 5, has_payload: true };
            assert_eq!(Head::from_bytes(&head.to_bytes()), Some(head));
        }
        let sparse = Vector::Sparse { indices: vec![1, 9], values: vec![0.5, -2.0] };
        for (shape, vector) in [
            (Shape::Dense { dims: 2 }, Vector::Dense(vec![1.0, f32::MIN_POSITIVE])),
            (Shape::Multi { dims: 2 }, Vector::Multi(vec![vec![1.0, 2.0], vec![3.0, 4.0]])),
            (Shape::Sparse, sparse),
            (Shape::Sparse, Vector::Sparse { indices: vec![], values: vec![] }),
        ] {
            assert_eq!(vector_from_bytes(shape, &vector_to_bytes(&vector)), Some(vector));
        }
    }

    #[test]
    fn every_flipped_bit_and_wrong_place_is_found() {
        let place = Place { table: 2, slot: 77 };
        let sealed = place.seal(b"twelve bytes".to_vec());
        assert_eq!(place.open(&sealed), Some(&b"twelve bytes"[..]));
        assert_eq!(Place { slot: 78, ..place }.open(&sealed), None);
        assert_eq!(Place { table: 1, ..place }.open(&sealed), None);
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(place.open(&flipped), None, "bit {bit}");
        }
    }
}
