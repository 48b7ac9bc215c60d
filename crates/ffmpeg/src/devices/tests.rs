//! Choices between devices that nobody here has: the inventory is data.

use ether_encoder::{VideoAction, VideoTrack};
use ether_process::{Config, Processes};
use ether_types::{ManualClock, SystemClock, Timestamp};

use super::record::{FULL_FOR, REMEMBERED};
use super::*;
use crate::inventory::{FAILURE_STANDS, Kind, Trial};
use crate::tests::film::{COPY, ENCODE, Film};
use crate::tests::hardware::with_a_card;

const CARD: Device = Device::Nvenc { gpu: 0 };
const NODE: Device = Device::Vaapi { node: 128 };

/// An FFmpeg that can do what `request` needs on every device, and devices that passed their trials.
fn inventory(request: &Request) -> Inventory {
    let both = |device| {
        [VideoCodec::H264, VideoCodec::Hevc].map(|codec| Trial {
            device,
            codec,
            verdict: Verdict::Works,
            tried_at: Timestamp::from_micros(0),
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

/// Devices of which the first is a card that stands for itself, under a clock of their own.
struct House {
    devices: Arc<Devices>,
    clock: ManualClock,
    processes: Processes,
    dir: tempfile::TempDir,
}

impl House {
    /// With a card that works as long as there is no file `broken` beside it; `verdict` is that of the start.
    fn open(request: &Request, verdict: Verdict) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let before = r#"[ -e "$(dirname "$0")/broken" ] && { echo "[h264_nvenc @ 0x1] broke" >&2; exit 1; }
echo trial >> "$(dirname "$0")/trials""#;
        let program = with_a_card(dir.path(), before, r#"exec ffmpeg "$@""#);
        let mut inventory = inventory(request).of_program(Some(program));
        inventory.trials[0].verdict = verdict;
        let (processes, clock) = (processes(), ManualClock::at(Timestamp::from_micros(0)));
        let (spawner, own) = (processes.spawner(), Arc::new(clock.clone()));
        let devices = Devices::new(inventory, spawner, own, HardwareWish::Auto);
        Self {
            devices,
            clock,
            processes,
            dir,
        }
    }

    fn fails(&self, film: &Request, fault: Fault) -> Refusal {
        self.devices.failed(CARD, VideoCodec::H264, &film.facts, fault)
    }

    /// Why the card is not chosen, where it is not.
    fn against(&self, film: &Request) -> Option<Rejection> {
        let choice = self.devices.choose(film);
        if choice.device == CARD {
            return None;
        }
        let (device, why) = rejected(&choice).remove(0);
        assert_eq!(device, CARD);
        Some(why)
    }

    fn trials(&self) -> usize {
        let text = std::fs::read_to_string(self.dir.path().join("trials"));
        text.unwrap_or_default().lines().count()
    }

    /// Waits for the trial that is under way; a busy machine may not finish it in time, then there is another.
    async fn tried(&self, film: &Request) {
        for _ in 0..20 {
            self.devices.join().await;
            if !matches!(self.against(film), Some(Rejection::Lost { .. })) {
                return;
            }
            self.clock.advance(FAILURE_STANDS);
            self.devices.started(&film.on(Device::Software));
        }
        panic!("this machine is too busy to try anything");
    }
}

/// The same film with another length.
fn other(request: &Request, seconds: i64) -> Request {
    let mut facts = (*request.facts).clone();
    facts.duration = Some(ether_media::Ticks(seconds * ether_media::Ticks::HZ));
    Request {
        facts: Arc::new(facts),
        ..request.clone()
    }
}

fn own_words() -> Fault {
    Fault::Failed {
        said: "[h264_nvenc] broke".to_owned(),
    }
}

fn unclear() -> Fault {
    Fault::Unclear {
        said: "it made nothing for too long".to_owned(),
    }
}

#[tokio::test]
async fn a_full_device_is_passed_over_for_a_while_and_a_broken_one_until_a_trial_proves_it() {
    let request = Film::clip("ntsc.mkv").request(ENCODE);
    let house = House::open(&request, Verdict::Works);
    let choice = house.devices.choose(&request);
    assert_eq!((choice.device, choice.share), (CARD, Share::Everything));
    assert_eq!(house.fails(&request, Fault::Full), Refusal::Device);
    assert_eq!(house.against(&request), Some(Rejection::Full));
    house.clock.advance(FULL_FOR);
    assert_eq!(house.against(&request), None);

    // The trial that starts at once fails: it is lost to every film.
    std::fs::write(house.dir.path().join("broken"), "").unwrap();
    assert_eq!(house.fails(&request, own_words()), Refusal::DeviceLost);
    house.devices.join().await;
    let elsewhere = other(&request, 77);
    let lost = house.against(&elsewhere);
    assert!(matches!(lost, Some(Rejection::Lost { .. })), "{lost:?}");
    let software = elsewhere.on(Device::Software);
    house.devices.started(&software);
    let counts = house.devices.counts();
    assert_eq!(
        (counts.full, counts.failed, counts.software, counts.fallbacks),
        (1, 1, 1, 1)
    );
    // What failed with one codec is not held against another.
    assert_eq!(house.devices.choose(&hevc(&request)).device, CARD);

    // The driver was mended. Nobody restarts the server, and the next who asks after a while brings it back.
    std::fs::remove_file(house.dir.path().join("broken")).unwrap();
    house.devices.started(&software);
    house.devices.join().await;
    assert!(house.against(&elsewhere).is_some() && house.trials() == 0);
    house.clock.advance(FAILURE_STANDS);
    house.devices.started(&software);
    house.tried(&elsewhere).await;
    assert_eq!(house.against(&elsewhere), None);
    assert!(house.trials() > 0);
    house.processes.shutdown().await;
}

/// A disk that does not answer, or a film that no encoder gets on with, costs nobody their card.
#[tokio::test]
async fn stalls_are_held_against_the_film_and_not_against_the_device_that_proves_itself() {
    let request = Film::clip("ntsc.mkv").request(ENCODE);
    let house = House::open(&request, Verdict::Works);
    for seconds in 1..=5 {
        let stalled = other(&request, seconds);
        assert_eq!(house.fails(&stalled, unclear()), Refusal::DeviceLost);
        // Until it has proved itself, nobody is sent there.
        let lost = house.against(&request);
        assert!(matches!(lost, Some(Rejection::Lost { .. })), "{lost:?}");
        house.tried(&stalled).await;
        // Whoever asks for that film again does not wait for the same stall again.
        let film = house.against(&stalled);
        assert!(matches!(film, Some(Rejection::Film { .. })), "{film:?}");
        assert_eq!(house.against(&request), None);
    }
    // Not for ever.
    house.clock.advance(REMEMBERED);
    assert_eq!(house.against(&other(&request, 5)), None);
    house.processes.shutdown().await;
}

#[tokio::test]
async fn a_device_on_which_several_films_fail_is_left_for_an_hour_and_one_film_counts_once() {
    let request = Film::clip("ntsc.mkv").request(ENCODE);
    let house = House::open(&request, Verdict::Works);
    for _ in 0..4 {
        house.fails(&request, own_words());
        house.tried(&request).await;
    }
    let another = other(&request, 9);
    assert_eq!(house.against(&another), None, "one film, however often");
    for seconds in 1..=2 {
        assert_eq!(house.against(&another), None);
        house.fails(&other(&request, seconds), own_words());
        house.devices.join().await;
    }
    let lost = house.against(&another);
    assert!(matches!(lost, Some(Rejection::Lost { .. })), "{lost:?}");
    house.clock.advance(REMEMBERED);
    house.tried(&another).await;
    assert_eq!(house.against(&another), None);
    house.processes.shutdown().await;
}

/// What failed or was full when the server started is tried again while it runs.
#[tokio::test]
async fn a_device_that_was_not_proved_at_the_start_is_tried_when_somebody_could_use_it() {
    let request = Film::clip("ntsc.mkv").request(ENCODE);
    let said = "No VA display found".to_owned();
    for (verdict, after) in [
        (Verdict::Full, FULL_FOR),
        (Verdict::Failed { said }, FAILURE_STANDS),
    ] {
        let house = House::open(&request, verdict);
        let software = request.on(Device::Software);
        house.devices.started(&software);
        house.devices.join().await;
        assert!(house.against(&request).is_some() && house.trials() == 0);
        house.clock.advance(after);
        for _ in 0..20 {
            house.devices.started(&software);
            house.devices.join().await;
            if house.against(&request).is_none() {
                break;
            }
            // A busy machine may not finish a trial in time.
            house.clock.advance(FAILURE_STANDS);
        }
        assert_eq!(house.against(&request), None);
        house.processes.shutdown().await;
    }
}
