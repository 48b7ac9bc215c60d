//! Choices between devices that nobody here has: the inventory is data.

use ether_encoder::{VideoAction, VideoTrack};
use ether_process::{Config, Processes};
use ether_types::{ManualClock, SystemClock, Timestamp};

use super::*;
use crate::inventory::{Kind, Trial};
use crate::tests::film::{COPY, ENCODE, Film};

const CARD: Device = Device::Nvenc { gpu: 0 };
const NODE: Device = Device::Vaapi { node: 128 };

/// An FFmpeg that can do what `request` needs on every device, and devices that passed their trials.
fn inventory(request: &Request) -> Inventory {
    let both = |device| {
        [VideoCodec::H264, VideoCodec::Hevc].map(|codec| Trial {
            device,
            codec,
            verdict: Verdict::Works,
        })
    };
    let requests = [CARD, NODE, Device::Software].map(|device| request.on(device));
    let wide = requests.clone().map(|request| hevc(&request));
    Inventory::with_all_for(&[requests, wide].concat(), [both(CARD), both(NODE)].concat())
}

fn hevc(request: &Request) -> Request {
    let mut hevc = request.clone();
    if let Some(VideoTrack {
        action: VideoAction::Encode(encode),
        ..
    }) = &mut hevc.video
    {
        encode.codec = VideoCodec::Hevc;
        encode.rungs[0].level = 93;
    }
    hevc
}

fn processes() -> Processes {
    Processes::start(Config::unguarded(Arc::new(SystemClock::new()))).unwrap()
}

fn rejected(choice: &Choice) -> Vec<(Device, Rejection)> {
    let reason = |reason: &ChoiceReason| match reason {
        ChoiceReason::Rejected { rejected, why } => Some((*rejected, why.clone())),
        _ => None,
    };
    choice.reasons.iter().filter_map(reason).collect()
}

#[test]
fn the_first_device_that_proved_itself_is_chosen_and_every_other_has_its_reason() {
    let film = Film::clip("ntsc.mkv");
    let request = film.request(ENCODE);
    let mut inventory = inventory(&request);
    let auto = |inventory: &Inventory| choose(&request, inventory, &[], HardwareWish::Auto);
    assert_eq!(auto(&inventory).device, CARD);
    assert_eq!(
        choose(&request, &inventory, &[], HardwareWish::Vaapi).device,
        NODE
    );

    let off = choose(&request, &inventory, &[], HardwareWish::Off);
    assert_eq!(off.reasons, [ChoiceReason::HardwareOff, ChoiceReason::Software]);
    let none = choose(&request, &inventory, &[], HardwareWish::Qsv);
    assert_eq!(none.reasons, [ChoiceReason::NoDevice, ChoiceReason::Software]);
    let copied = choose(&film.request(COPY), &inventory, &[], HardwareWish::Auto);
    assert_eq!(copied.reasons, [ChoiceReason::NothingToEncode]);

    inventory.trials[0].verdict = Verdict::OtherConfiguration;
    let second = auto(&inventory);
    assert_eq!(second.device, NODE);
    assert_eq!(rejected(&second), [(CARD, Rejection::OtherConfiguration)]);
    assert_eq!(second.reasons.last(), Some(&ChoiceReason::Proved));

    // A trial that was not finished proves nothing.
    inventory.trials[2].verdict = Verdict::Unknown;
    let neither = auto(&inventory);
    assert_eq!(neither.device, Device::Software);
    assert_eq!(rejected(&neither)[1], (NODE, Rejection::Unknown));
}

/// A filter that only this device's plan needs and that FFmpeg lacks takes the device out, and no other.
#[test]
fn a_device_whose_plan_cannot_be_run_is_passed_over() {
    let request = Film::clip("ntsc.mkv").request(ENCODE);
    let mut inventory = inventory(&request);
    inventory.forget(Kind::Filter, "scale_cuda");
    let choice = choose(&request, &inventory, &[], HardwareWish::Auto);
    assert_eq!(choice.device, NODE);
    let lacks = Rejection::Lacks {
        what: "filter scale_cuda".to_owned(),
    };
    assert_eq!(rejected(&choice), [(CARD, lacks)]);
}

#[tokio::test]
async fn a_full_device_is_passed_over_for_a_while_and_a_broken_one_until_the_next_start() {
    let processes = processes();
    let request = Film::clip("ntsc.mkv").request(ENCODE);
    let inventory = inventory(&request);
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let devices = Devices::new(
        inventory,
        processes.spawner(),
        Arc::new(clock.clone()),
        HardwareWish::Auto,
    );
    let choice = devices.choose(&request);
    assert_eq!((choice.device, choice.share), (CARD, Share::Everything));
    let told = devices.failed(CARD, VideoCodec::H264, Fault::Full);
    assert_eq!(told, Refusal::Device);
    let choice = devices.choose(&request);
    assert_eq!(
        (choice.device, rejected(&choice)),
        (NODE, vec![(CARD, Rejection::Full)])
    );
    clock.advance(FULL_FOR);
    assert_eq!(devices.choose(&request).device, CARD);

    // The real FFmpeg tries the card anew, which is not there: it stays lost.
    let said = "[h264_nvenc] broke".to_owned();
    let told = devices.failed(CARD, VideoCodec::H264, Fault::Failed { said });
    assert_eq!(told, Refusal::DeviceLost);
    assert_eq!(devices.choose(&request).device, NODE);
    devices.join().await;
    clock.advance(FULL_FOR * 100);
    let choice = devices.choose(&request);
    let [(CARD, Rejection::Lost { said })] = &rejected(&choice)[..] else {
        panic!("{choice:?}")
    };
    assert!(
        said.contains("libcuda") || said.contains("Device creation"),
        "{said}"
    );
    devices.started(&request.on(Device::Software));
    let counts = devices.counts();
    assert_eq!(
        (counts.full, counts.failed, counts.software, counts.fallbacks),
        (1, 1, 1, 1)
    );
    // What failed with one codec is not held against another.
    assert_eq!(devices.choose(&hevc(&request)).device, CARD);
    processes.shutdown().await;
}
