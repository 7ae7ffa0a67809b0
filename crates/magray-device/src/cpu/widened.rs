//! Plain loops, compiled for the widest vectors that the machine has. Chooses by the machine alone and changes no result.

/// Loops over arrays that the compiler can turn into vectors.
pub trait Wide {
    /// What comes of it.
    type Output;

    /// Does the work. It and all it calls must be `#[inline(always)]`, so that it is compiled for each kind of machine.
    fn run(self) -> Self::Output;
}

/// Does the work with the machine's widest vectors.
pub fn widened<W: Wide>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        let has_bits = is_x86_feature_detected!("lzcnt") && is_x86_feature_detected!("bmi2");
        let has_wide = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512cd");
        if has_bits && has_wide {
            // SAFETY: the machine has what it is compiled for.
            return unsafe { on_avx512(work) };
        }
        if has_bits && is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { on_avx2(work) };
        }
    }
    work.run()
}

/// # Safety
/// The machine has these instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,bmi2,lzcnt")]
unsafe fn on_avx512<W: Wide>(work: W) -> W::Output {
    work.run()
}

/// # Safety
/// The machine has these instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi2,lzcnt")]
unsafe fn on_avx2<W: Wide>(work: W) -> W::Output {
    work.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sum<'a>(&'a [u32]);

    impl Wide for Sum<'_> {
        type Output = u32;

        #[inline(always)]
        fn run(self) -> u32 {
            self.0.iter().map(|number| number.leading_zeros()).sum()
        }
    }

    #[test]
    fn wide_work_has_the_result_of_narrow_work() {
        let numbers: Vec<u32> = (0..1000).collect();
        assert_eq!(widened(Sum(&numbers)), Sum(&numbers).run());
    }
}
