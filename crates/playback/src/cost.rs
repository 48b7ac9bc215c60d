//! What a playback's encoder is charged: a published table, never a benchmark at start (D18).
//!
//! 1,000 milli-slots are one 1080p picture at 30 frames a second, decoded from H.264 and encoded to H.264 in
//! real time. A charge is the sum of:
//!
//! | work | milli-slots for 1080p30 |
//! | --- | --- |
//! | decoding MPEG-2, H.264, VP8 and older codecs | 250 |
//! | decoding HEVC and VP9 | 400 |
//! | decoding AV1 | 500 |
//! | encoding H.264 | 750 |
//! | encoding HEVC | 2,250 |
//! | weaving fields into pictures | 100 |
//! | mapping a wide dynamic range | 500 |
//!
//! each scaled by pixels a second, and, whatever the size, 30 for every encoded sound and 20 for repackaging.
//! A ladder decodes once and is charged the encoding of every quality: viewers may watch all of them.
//! What a device does is charged to the device in the same measure, and to the processor only what is left to it:
//! all of the picture where the device decodes too, its encoding where turning, mapping or drawing is done before.
//! Copying runs at the viewer's pace through the hold-back rules, so it is charged the repackaging alone.

use ether_encoder::Share;
use ether_media::decision::{AudioAction, AudioDecision, Decision, Protocol, VideoAction};
use ether_media::{Codec, Facts, FieldOrder, Rational, Ticks};

use crate::ports::Units;

/// Pixels a second of the unit: 1920 × 1080 at 30 frames a second.
const UNIT_PIXELS: u64 = 1920 * 1080 * 30;
/// Frame rate assumed where the file claims none.
const ASSUMED_RATE: Rational = Rational { num: 30, den: 1 };

const REPACKAGE: u64 = 20;
const SOUND: u64 = 30;
const ENCODE_H264: u64 = 750;
const ENCODE_HEVC: u64 = 2_250;
const DEINTERLACE: u64 = 100;
const TONE_MAP: u64 = 500;

/// Segments of scratch that are booked: what a player fetches ahead and what it may go back to.
const SEGMENTS_HELD: u64 = 8;
/// Least and most scratch that is booked, in MiB.
const SCRATCH: std::ops::RangeInclusive<u64> = 32..=1_024;

/// What one execution costs, before it is known what a device does of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Repackaging and sound, which the processor always does.
    rest: u64,
    /// Decoding, weaving and mapping the picture.
    pictures: u64,
    /// Encoding it, in every quality.
    encoding: u64,
    scratch_mib: u32,
}

impl Costs {
    /// Of the execution of `decision`. A playback whose file is handed over costs nothing.
    pub fn of(facts: &Facts, decision: &Decision) -> Self {
        if decision.protocol.is_none() {
            return Self::default();
        }
        let mut costs = Self {
            rest: REPACKAGE,
            scratch_mib: scratch(decision),
            ..Self::default()
        };
        if let Some(video) = &decision.video
            && let VideoAction::Encode(target) = &video.action
        {
            let rate = video.frame_rate.unwrap_or(ASSUMED_RATE);
            let source = facts.stream(video.stream).and_then(|s| Some((s, s.video()?)));
            if let Some((stream, picture)) = source {
                let fields = picture.field_order.is_some_and(|o| o != FieldOrder::Progressive);
                let mut each = decode(&stream.codec);
                each += if fields { DEINTERLACE } else { 0 };
                each += if target.tone_map { TONE_MAP } else { 0 };
                costs.pictures = scaled(each, picture.width, picture.height, rate);
            }
            let encode = match video.codec {
                Codec::Hevc => ENCODE_HEVC,
                _ => ENCODE_H264,
            };
            let lower = decision.lower.iter().map(|quality| &quality.target);
            for target in std::iter::once(target).chain(lower) {
                let each = scaled(encode, target.width, target.height, rate);
                costs.encoding = costs.encoding.saturating_add(each);
            }
        }
        let encoded = |audio: &&AudioDecision| matches!(audio.action, AudioAction::Encode(_));
        costs.rest += decision.made_sounds().into_iter().filter(encoded).count() as u64 * SOUND;
        costs
    }

    /// What is charged where a device does `share` of the picture's work: to it what it does, the rest to the
    /// processor.
    pub fn units(&self, share: Share) -> Units {
        let (processor, device) = match share {
            Share::Nothing => (self.pictures.saturating_add(self.encoding), 0),
            Share::Encoding => (self.pictures, self.encoding),
            Share::Everything => (0, self.pictures.saturating_add(self.encoding)),
        };
        let narrow = |slots: u64| u32::try_from(slots).unwrap_or(u32::MAX);
        Units {
            milli_slots: narrow(self.rest.saturating_add(processor)),
            device_milli_slots: narrow(device),
            scratch_mib: self.scratch_mib,
        }
    }
}

fn decode(codec: &Codec) -> u64 {
    match codec {
        Codec::Hevc | Codec::Vp9 => 400,
        Codec::Av1 => 500,
        _ => 250,
    }
}

/// `each` milli-slots for 1080p30, at this size and rate.
fn scaled(each: u64, width: u32, height: u32, rate: Rational) -> u64 {
    let pixels = u128::from(width) * u128::from(height) * u128::from(rate.num) / u128::from(rate.den.max(1));
    let scaled = (pixels * u128::from(each)).div_ceil(u128::from(UNIT_PIXELS));
    u64::try_from(scaled).unwrap_or(u64::MAX / 4)
}

fn scratch(decision: &Decision) -> u32 {
    // A stream goes from the encoder to its viewer.
    if decision.protocol == Some(Protocol::Http) {
        return 0;
    }
    let timeline = &decision.timeline;
    let longest = (0..timeline.len()).map(|n| timeline.duration(n)).max();
    let longest = u64::try_from(longest.unwrap_or(Ticks::ZERO).as_millis()).unwrap_or(0);
    let best = decision.video.iter().map(|video| video.rate.peak);
    let lower = decision.lower.iter().map(|quality| quality.rate.peak);
    let sounds = decision.made_sounds().into_iter().map(|sound| sound.rate.peak);
    let bits = best.chain(lower).chain(sounds).fold(0_u64, u64::saturating_add);
    let segment = u128::from(bits) * u128::from(longest) / 8_000;
    let mib = (segment * u128::from(SEGMENTS_HELD)).div_ceil(1 << 20);
    let mib = u64::try_from(mib)
        .unwrap_or(u64::MAX)
        .clamp(*SCRATCH.start(), *SCRATCH.end());
    u32::try_from(mib).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{facts, film_picture};
    use ether_media::decision::{Client, Force, Wishes, decide};

    fn charged(change: impl FnOnce(&mut ether_media::VideoFacts), wishes: Wishes) -> Units {
        let mut picture = film_picture(1920, 1080);
        picture.frame_rate = Some(Rational { num: 30, den: 1 });
        change(&mut picture);
        let facts = facts(picture, 60);
        let decision = decide(&facts, &Client::default(), &wishes).unwrap();
        Costs::of(&facts, &decision).units(Share::Nothing)
    }

    fn encode() -> Wishes {
        Wishes {
            video: Force::Encode,
            ..Wishes::default()
        }
    }

    #[test]
    fn the_unit_is_one_full_hd_encode_in_real_time() {
        assert_eq!(charged(|_| {}, encode()).milli_slots, 1_000 + 20);
        let half = Wishes {
            max_height: Some(540),
            ..encode()
        };
        let smaller = charged(|_| {}, half).milli_slots;
        assert!(
            (430..=460).contains(&smaller),
            "decoding in full, encoding a quarter: {smaller}"
        );
    }

    #[test]
    fn a_device_is_charged_what_it_does_and_the_processor_the_rest() {
        let mut picture = film_picture(1920, 1080);
        picture.frame_rate = Some(Rational { num: 30, den: 1 });
        let facts = facts(picture, 60);
        let decision = decide(&facts, &Client::default(), &encode()).unwrap();
        let costs = Costs::of(&facts, &decision);
        let charged = |share| {
            let units = costs.units(share);
            (units.milli_slots, units.device_milli_slots)
        };
        assert_eq!(charged(Share::Nothing), (20 + 250 + 750, 0));
        assert_eq!(charged(Share::Encoding), (20 + 250, 750));
        assert_eq!(charged(Share::Everything), (20, 250 + 750));
    }

    #[test]
    fn copying_is_nearly_free_and_four_times_the_pixels_cost_four_times() {
        assert_eq!(charged(|_| {}, Wishes::default()).milli_slots, 20);
        let large = charged(|v| (v.width, v.height) = (3840, 2160), encode());
        assert_eq!(large.milli_slots, 4_020);
    }

    #[test]
    fn a_ladder_is_decoded_once_and_encoded_in_every_size() {
        let ladder = Wishes {
            ladder: true,
            ..encode()
        };
        let (one, all) = (charged(|_| {}, encode()), charged(|_| {}, ladder));
        // 720p, 540p, 432p and 360p have 0.97 times the pixels of 1080p.
        assert!((1_020 + 700..=1_020 + 750).contains(&all.milli_slots), "{all:?}");
        assert!(all.scratch_mib > one.scratch_mib);
    }

    #[test]
    fn absurd_sizes_and_rates_do_not_overflow() {
        let absurd = charged(
            |v| {
                (v.width, v.height) = (u32::MAX, u32::MAX);
                v.frame_rate = Some(Rational {
                    num: u32::MAX,
                    den: 1,
                });
            },
            encode(),
        );
        assert!(absurd.milli_slots > 1_000_000);
        assert!((32..=1_024).contains(&absurd.scratch_mib));
    }
}
