//! Writes the numbers of vectors with as few digits as read back as the same numbers, many at a time.
//! Leaves to others what JSON cannot say.
//!
//! Most numbers of a vector are below 1 and not far below. For those nine digits always suffice, and whether fewer do is one
//! comparison for eight, seven and six. That needs no branch, so the compiler makes vectors of it: it takes a third of the
//! time of an algorithm for all numbers, and writing vectors is mostly this.

use magray_engine::{Wide, widened};

const TOGETHER: usize = 64;
/// Bytes that a number takes at most: a sign, nine digits, a point, an exponent or zeros, and its comma.
const ROOM: usize = 32;
/// The smallest number that is written without an exponent.
const SMALLEST: f32 = 1e-4;

pub(super) fn write(numbers: &[f32], out: &mut Vec<u8>) {
    widened(Writing { numbers, out });
}

pub(super) fn write_one(number: f32, out: &mut Vec<u8>) {
    if number.is_finite() {
        out.extend_from_slice(zmij::Buffer::new().format_finite(number).as_bytes());
    } else {
        out.extend_from_slice(b"null");
    }
}

struct Writing<'a> {
    numbers: &'a [f32],
    out: &'a mut Vec<u8>,
}

impl Wide for Writing<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { numbers, out } = self;
        let (mut sizes, mut spelled) = ([0.5; TOGETHER], Spelled::new());
        let mut text = [0; TOGETHER * ROOM];
        for some in numbers.chunks(TOGETHER) {
            for (size, number) in sizes.iter_mut().zip(some) {
                *size = if is_fraction(*number) { number.abs() } else { 0.5 };
            }
            spelled.spell(&sizes);
            let mut length = 0;
            for (at, number) in some.iter().enumerate() {
                if is_fraction(*number) {
                    let Some(room) = text[length..].first_chunk_mut() else { unreachable!("each has its room") };
                    length += spelled.put(at, number.is_sign_negative(), room);
                } else {
                    out.extend_from_slice(&text[..length]);
                    length = 0;
                    write_one(*number, out);
                    out.push(b',');
                }
            }
            out.extend_from_slice(&text[..length]);
        }
    }
}

/// Whether a number is one of those that are written here.
#[inline(always)]
fn is_fraction(number: f32) -> bool {
    (SMALLEST..1.0).contains(&number.abs())
}

/// Numbers as digits, field by field, so that the fields are vectors.
struct Spelled {
    /// The first eight, the first of all in the lowest byte.
    eight: [u64; TOGETHER],
    ninth: [u64; TOGETHER],
    /// Zeros between the point and the digits.
    zeros: [u64; TOGETHER],
    /// Digits up to the last that is not zero.
    length: [u64; TOGETHER],
}

impl Spelled {
    #[inline(always)]
    fn new() -> Self {
        Self { eight: [0; TOGETHER], ninth: [0; TOGETHER], zeros: [0; TOGETHER], length: [0; TOGETHER] }
    }

    #[inline(always)]
    fn spell(&mut self, sizes: &[f32; TOGETHER]) {
        for (at, size) in sizes.iter().enumerate() {
            let (nine, zeros) = nine_digits(*size);
            let first = tenth(nine);
            let (eight, ninth) = (digits(first), nine - first * 10);
            // The last digits stand in the highest bytes.
            let needed = 8 - u64::from(eight.leading_zeros()) / 8;
            self.eight[at] = eight | 0x3030_3030_3030_3030;
            self.ninth[at] = ninth;
            self.zeros[at] = zeros;
            self.length[at] = if ninth == 0 { needed } else { 9 };
        }
    }

    /// Puts a number and a comma at the start of the room; how many bytes they took.
    #[inline(always)]
    fn put(&self, at: usize, is_negative: bool, room: &mut [u8; ROOM]) -> usize {
        room[0] = b'-';
        let start = usize::from(is_negative);
        room[start..start + 8].copy_from_slice(b"0.000000");
        let start = start + 2 + (self.zeros[at] & 7) as usize;
        room[start..start + 8].copy_from_slice(&self.eight[at].to_le_bytes());
        room[start + 8] = b'0' | self.ninth[at] as u8;
        let end = start + (self.length[at] & 15) as usize;
        room[end] = b',';
        end + 1
    }
}

/// The first nine digits of a fraction, the last ones being zeros where fewer suffice, and the zeros before them.
#[inline(always)]
fn nine_digits(size: f32) -> (u64, u64) {
    const MANTISSA_BITS: u32 = 23;
    let (bits, size) = (size.to_bits(), f64::from(size));
    let (mut scale, mut zeros) = (1e9, 0);
    for (least, its_scale) in [(0.1, 1e10), (0.01, 1e11), (0.001, 1e12)] {
        let is_less = size < least;
        scale = if is_less { its_scale } else { scale };
        zeros += u64::from(is_less);
    }
    // From 1e8 to 1e9. The product is exact: 24 bits by 28 at most.
    let scaled = size * scale;
    // What is nearer to the number than half its distance to the next one reads back as it. Below a power of two the next
    // one is nearer.
    let is_power = bits & ((1 << MANTISSA_BITS) - 1) == 0;
    let exponent = u64::from(bits >> MANTISSA_BITS) + (1023 - 127) - u64::from(MANTISSA_BITS) - 1 - u64::from(is_power);
    let reach = f64::from_bits(exponent << 52) * scale;
    let reads_back = |digits: f64| (scaled - digits).abs() < reach;
    let mut best = nearest(scaled);
    // At most one number of six digits is so near, so that five or fewer need no look of their own.
    for (part, unit) in [(1e-1, 1e1), (1e-2, 1e2), (1e-3, 1e3)] {
        let fewer = nearest(scaled * part) * unit;
        best = if reads_back(fewer) { fewer } else { best };
    }
    let best = whole(best);
    // A number just below a power of ten may be written as that power.
    let is_ten = best == 1_000_000_000;
    (if is_ten { 100_000_000 } else { best }, zeros - u64::from(is_ten))
}

/// Added to a float below it, it leaves the whole number in the lowest bits.
const WHOLE: f64 = (1u64 << 52) as f64;

#[inline(always)]
fn nearest(number: f64) -> f64 {
    (number + WHOLE) - WHOLE
}

#[inline(always)]
fn whole(number: f64) -> u64 {
    (number + WHOLE).to_bits() & ((1 << 52) - 1)
}

/// The number divided by 10, below 2^32: there are no vectors that divide, nor the upper half of a product.
#[inline(always)]
fn tenth(number: u64) -> u64 {
    (number * 3_435_973_837) >> 35
}

/// The number divided by 10,000, below 2^27.
#[inline(always)]
fn ten_thousandth(number: u64) -> u64 {
    (number * 3_518_437_209) >> 45
}

/// The eight digits of a number, the first in the lowest byte: halves, then pairs, then digits, all at once.
#[inline(always)]
fn digits(number: u64) -> u64 {
    let first = ten_thousandth(number);
    let halves = first | (number - first * 10_000) << 32;
    let hundreds = ((halves * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let pairs = hundreds | (halves - hundreds * 100) << 16;
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (pairs - tens * 10) << 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(numbers: &[f32]) -> Vec<String> {
        let mut out = Vec::new();
        write(numbers, &mut out);
        let mut narrow = Vec::new();
        Writing { numbers, out: &mut narrow }.run();
        assert_eq!(out, narrow);
        let text = String::from_utf8(out).unwrap();
        text.split_terminator(',').map(str::to_owned).collect()
    }

    fn check(numbers: &[f32]) {
        let texts = written(numbers);
        assert_eq!(texts.len(), numbers.len());
        for (text, number) in texts.iter().zip(numbers) {
            let mut buffer = zmij::Buffer::new();
            let shortest = buffer.format_finite(*number);
            assert_eq!(text.parse::<f32>().unwrap().to_bits(), number.to_bits(), "{text} for {shortest}");
            assert_eq!(text.len(), shortest.len(), "{text} for {shortest}");
            assert!(serde_json::from_str::<f32>(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn few_digits_stay_few() {
        let texts = ["0.5", "-0.25", "0.1", "0.001", "-0.01", "0.123", "0.9", "0.99999994", "1.0", "-0.0", "12.5"];
        let numbers: Vec<f32> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(written(&numbers), texts);
    }

    #[test]
    fn what_json_cannot_say_is_null() {
        assert_eq!(written(&[f32::NAN, 0.5, f32::INFINITY, -f32::INFINITY]), ["null", "0.5", "null", "null"]);
        assert!(written(&[]).is_empty());
    }

    #[test]
    fn numbers_around_powers_read_back() {
        let powers = (0..20).flat_map(|n| [0.5f32.powi(n), 0.1f32.powi(n), 10f32.powi(-n)]);
        for power in powers {
            let near: Vec<f32> = (power.to_bits() - 2000..power.to_bits() + 2000).map(f32::from_bits).collect();
            check(&near);
        }
    }

    /// The shorter one is nearly as far away as the next number is.
    #[test]
    fn fewer_digits_suffice_up_to_half_of_the_distance_to_the_next_number() {
        check(&[f32::from_bits(985_273_693)]);
    }

    #[test]
    fn every_eight_digits_are_written() {
        for number in (0..100_000_000).step_by(997).chain([99_999_999]) {
            let text = (digits(number) | 0x3030_3030_3030_3030).to_le_bytes();
            assert_eq!(str::from_utf8(&text).unwrap(), format!("{number:08}"));
        }
    }

    proptest! {
        #[test]
        fn all_finite_numbers_read_back(numbers in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::ZERO, 0..200)) {
            check(&numbers);
        }

        #[test]
        fn numbers_of_vectors_read_back(numbers in prop::collection::vec(-1.0f32..1.0, 0..200)) {
            check(&numbers);
        }

        #[test]
        fn small_numbers_read_back(numbers in prop::collection::vec(-0.01f32..0.01, 0..200)) {
            check(&numbers);
        }
    }
}
