//! Runs every target's body on a few inputs of random bytes, the same ones each time: what a fuzzer would find in its first second.

use memferry_fuzz as fuzz;

mod targets;

/// Numbers that look random (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Inputs for each target; more if `MEMFERRY_FUZZ_INPUTS` says so.
fn inputs() -> u64 {
    std::env::var("MEMFERRY_FUZZ_INPUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(100)
}

fn run(body: fn(&[u8])) {
    for seed in 1..=inputs() {
        let mut random = Random(seed);
        random.next();
        let length = random.next() as usize % 300;
        // Small numbers are more often of use than others.
        let small = random.next().is_multiple_of(2);
        let byte = |random: &mut Random| {
            let byte = random.next() >> 32;
            if small && byte & 0x300 != 0 { byte as u8 % 16 } else { byte as u8 }
        };
        let bytes: Vec<u8> = (0..length).map(|_| byte(&mut random)).collect();
        body(&bytes);
    }
}

macro_rules! targets {
    ($($(#[$attribute:meta])? $target:ident)*) => {
        $(
            #[test]
            $(#[$attribute])?
            fn $target() {
                run(fuzz::$target);
            }
        )*

        #[test]
        fn every_target_is_listed() {
            targets::check(&[$(stringify!($target)),*]);
        }
    };
}

targets! {
    bulk_receiver bulk_relay bulk_request client_answer client_completion control_message doctor_files doctor_report dsa_device
    engine_process fault_schedule geometry link_channel link_config link_message link_secure link_status ninep_message pci_device
    pci_socket
    #[cfg_attr(not(has_libfabric), ignore = "the headers of libfabric are not installed")]
    provider_wire
    request_slot ring_reader sdma_device service_config
}
