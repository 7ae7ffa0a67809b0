//! What a compiled kernel says of itself: the stack that its threads need.
//! Loads nothing, and believes no length that leads out of the file.

/// Bytes of stack that a thread of a cubin's kernels needs at most; `None` where it is no cubin.
pub fn stack_bytes(cubin: &[u8]) -> Option<u32> {
    let cubin = Elf::of(cubin)?;
    let mut attributes = cubin.section(".nv.info")?;
    let mut most = 0;
    while let Some((head, rest)) = attributes.split_at_checked(4) {
        // A format, an attribute, and two bytes: a value or, in this format, the length of one that follows.
        let length = if head[0] == VALUE_FOLLOWS { usize::from(u16::from_le_bytes([head[2], head[3]])) } else { 0 };
        let (value, rest) = rest.split_at_checked(length)?;
        if head[1] == FRAME_SIZE && length == 8 {
            // The first four bytes name the function.
            most = most.max(number(value, 4)?);
        }
        attributes = rest;
    }
    Some(most)
}

const VALUE_FOLLOWS: u8 = 4;
const FRAME_SIZE: u8 = 0x11;

/// A 64-bit ELF file, little-endian.
struct Elf<'a> {
    bytes: &'a [u8],
    /// The headers of its sections, each as long.
    headers: Vec<&'a [u8]>,
    /// Which section holds the names of all.
    names: usize,
}

impl<'a> Elf<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let half = |at: usize| Some(usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
        let (start, length, count, names) = (long(bytes, 40)?, half(58)?, half(60)?, half(62)?);
        let headers = (0..count).map(|at| bytes.get(start.checked_add(at * length)?..)?.get(..length));
        Some(Self { bytes, headers: headers.collect::<Option<_>>()?, names })
    }

    /// The content of the section of this name.
    fn section(&self, name: &str) -> Option<&'a [u8]> {
        let names = self.content(self.headers.get(self.names)?)?;
        let is_named = |header: &&&[u8]| {
            let start = number(header, 0).and_then(|at| names.get(at as usize..));
            start.is_some_and(|text| text.starts_with(name.as_bytes()) && text.get(name.len()) == Some(&0))
        };
        self.content(self.headers.iter().find(is_named)?)
    }

    fn content(&self, header: &[u8]) -> Option<&'a [u8]> {
        self.bytes.get(long(header, 24)?..)?.get(..long(header, 32)?)
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with the sections that count: their names, and what is said of functions.
    fn elf(info: &[u8]) -> Vec<u8> {
        let names = b"\0.nv.info.a\0.nv.info\0";
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes.extend(names);
        let at = bytes.len();
        bytes.extend(info);
        let headers = bytes.len() as u64;
        for (name, start, length) in [(0u32, 64, names.len()), (1, 0, 0), (12, at, info.len())] {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[24..32].copy_from_slice(&(start as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(length as u64).to_le_bytes());
            bytes.extend(header);
        }
        bytes[40..48].copy_from_slice(&headers.to_le_bytes());
        bytes[58] = 64;
        bytes[60] = 3;
        bytes
    }

    #[test]
    fn the_largest_frame_of_all_functions_counts() {
        let frame = |bytes: u8| [4, 0x11, 8, 0, 1, 0, 0, 0, bytes, 0, 0, 0];
        let info = [&[3, 0x1b, 0xff, 0][..], &frame(8), &frame(24), &[4, 0x12, 4, 0, 9, 9, 9, 9], &frame(0)].concat();
        assert_eq!(stack_bytes(&elf(&info)), Some(24));
        assert_eq!(stack_bytes(&elf(&[])), Some(0));
    }

    #[test]
    fn what_is_cut_short_or_no_cubin_says_nothing() {
        let whole = elf(&[4, 0x11, 8, 0, 1, 0, 0, 0, 16, 0, 0, 0]);
        assert_eq!(stack_bytes(&whole), Some(16));
        for length in 0..whole.len() {
            assert_eq!(stack_bytes(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(stack_bytes(b"not an ELF file, but long enough to be read as one: the rest is text as well"), None);
        assert_eq!(stack_bytes(&elf(&[4, 0x11, 200, 0, 1])), None, "a length that leads out of the file");
    }
}
