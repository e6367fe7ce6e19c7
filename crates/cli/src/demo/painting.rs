//! The pictures the demo draws when it is given none: a ferry at sunset, and a badge to lay over it.
//!
//! Shapes are distances in pixels, negative inside; edges are smoothed over one pixel, except the badge's outline, which
//! must be of the key's colour exactly or not at all.

use crate::picture::{Colours, Kind, Picture};

/// The colour of the badge that is left out.
pub(crate) const KEY: [u8; 3] = [255, 0, 255];

type Colour = [f32; 3];

fn rgb(value: u32) -> Colour {
    let [_, red, green, blue] = value.to_be_bytes();
    [red, green, blue].map(|part| f32::from(part) / 255.0)
}

fn mix(from: Colour, to: Colour, share: f32) -> Colour {
    let share = share.clamp(0.0, 1.0);
    std::array::from_fn(|part| from[part] + (to[part] - from[part]) * share)
}

/// Paints over `colour` where `distance` is inside.
fn paint(colour: &mut Colour, with: Colour, distance: f32) {
    *colour = mix(*colour, with, 0.5 - distance);
}

fn disc(x: f32, y: f32, centre: (f32, f32), radius: f32) -> f32 {
    (x - centre.0).hypot(y - centre.1) - radius
}

fn rectangle(x: f32, y: f32, from: (f32, f32), to: (f32, f32)) -> f32 {
    (from.0 - x).max(x - to.0).max(from.1 - y).max(y - to.1)
}

fn draw(width: u32, height: u32, colour_at: impl Fn(f32, f32) -> Colour) -> Picture {
    let mut pixels = Vec::with_capacity(width as usize * height as usize * 4);
    for y in 0..height {
        for x in 0..width {
            let colour = colour_at(x as f32 + 0.5, y as f32 + 0.5);
            pixels.extend(colour.map(|part| (part.clamp(0.0, 1.0) * 255.0).round() as u8));
            pixels.push(255);
        }
    }
    Picture { width, height, kind: Kind::Rgb8, pixels, colours: Colours::default() }
}

const HORIZON: f32 = 470.0;
const SUN: (f32, f32) = (700.0, 400.0);

/// A ferry at sunset, 1024 x 768.
pub(crate) fn ferry() -> Picture {
    draw(1024, 768, |x, y| {
        let mut colour = if y < HORIZON { sky(x, y) } else { sea(x, y) };
        ship(&mut colour, x, y);
        colour
    })
}

fn sky(x: f32, y: f32) -> Colour {
    let mut colour = mix(rgb(0x1b_2a5c), rgb(0xff_9e5e), (y / HORIZON).powf(1.6));
    let from_sun = disc(x, y, SUN, 64.0);
    colour = mix(colour, rgb(0xff_e3a8), 0.75 * (-from_sun.max(0.0) / 90.0).exp());
    paint(&mut colour, rgb(0xff_f6d8), from_sun);
    let ridge = |height: f32, stretch: f32, shift: f32| {
        HORIZON - height * (1.0 + (x / stretch + shift).sin() + 0.4 * (x * 2.7 / stretch).sin())
    };
    paint(&mut colour, rgb(0x8a_5c7e), ridge(42.0, 150.0, 0.6) - y);
    paint(&mut colour, rgb(0x4d_3b66), ridge(24.0, 90.0, 2.1) - y);
    colour
}

fn sea(x: f32, y: f32) -> Colour {
    let depth = (y - HORIZON) / (768.0 - HORIZON);
    let mut colour = mix(rgb(0xc9_7b68), rgb(0x14_2b52), depth.sqrt());
    let wave = (y * y / 900.0 + 6.0 * (x / 47.0).sin() + 3.0 * (x / 19.0).sin()).sin();
    colour = mix(colour, rgb(0x2f_4f80), 0.35 * wave * depth);
    let beside = (x - SUN.0).abs() / (50.0 + 130.0 * depth);
    mix(colour, rgb(0xff_e3a8), (0.8 - beside) * (0.55 + 0.45 * wave))
}

fn ship(colour: &mut Colour, x: f32, y: f32) {
    let hull = rectangle(x, y, (190.0 + 0.5 * (y - 520.0), 520.0), (560.0 - 0.9 * (y - 520.0), 580.0));
    let decks = rectangle(x, y, (230.0, 476.0), (500.0, 520.0));
    let bridge = rectangle(x, y, (400.0, 436.0), (480.0, 476.0));
    let funnel = rectangle(x, y, (290.0 + 0.2 * (476.0 - y), 410.0), (330.0 + 0.2 * (476.0 - y), 476.0));
    let smoke = (0..5u8)
        .map(|puff| {
            let away = f32::from(puff);
            disc(x, y, (300.0 - 42.0 * away, 385.0 - 17.0 * away * away.sqrt()), 16.0 + 7.0 * away)
        })
        .fold(f32::MAX, f32::min);
    *colour = mix(*colour, rgb(0xee_dfe2), 0.5 * (0.5 - smoke / 14.0).clamp(0.0, 1.0));
    paint(colour, rgb(0xc8_3c3c), funnel);
    paint(colour, rgb(0x2a_2440), funnel.max(y - 424.0));
    paint(colour, rgb(0xf4_efe6), decks.min(bridge));
    let window = |from: f32, to: f32, top: f32| {
        let within = (x - from).rem_euclid(27.0);
        rectangle(within, y, (6.0, top), (20.0, top + 12.0)).max(from - x).max(x - to)
    };
    paint(colour, rgb(0x3d_6a94), window(238.0, 481.0, 484.0).min(window(402.0, 480.0, 446.0)));
    paint(colour, rgb(0x20_3a5f), hull);
    paint(colour, rgb(0xe8_b04a), hull.max((y - 534.0).abs() - 3.0));
}

/// A round badge on the key's colour, 256 x 256.
pub(crate) fn badge() -> Picture {
    let key = KEY.map(|part| f32::from(part) / 255.0);
    draw(256, 256, |x, y| {
        let edge = disc(x, y, (128.0, 128.0), 120.0);
        if edge > 0.0 {
            return key;
        }
        let mut colour = rgb(0xf7_f3e8);
        paint(&mut colour, rgb(0x16_2d50), (edge + 9.0).abs() - 9.0);
        paint(&mut colour, rgb(0x16_7f86), arrow(x, y - 98.0));
        paint(&mut colour, rgb(0xd9_6a3b), arrow(256.0 - x, y - 158.0));
        colour
    })
}

/// An arrow to the right around y = 0.
fn arrow(x: f32, y: f32) -> f32 {
    let shaft = rectangle(x, y, (58.0, -11.0), (160.0, 11.0));
    let head = (150.0 - x).max((x - 200.0 + y.abs() * 1.35) / 1.7);
    shaft.min(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn badge_has_the_key_outside_its_disc_and_nowhere_else() {
        let badge = badge();
        let keyed = badge.pixels.chunks_exact(4).filter(|pixel| pixel[..3] == KEY).count() as f32;
        let outside = 256.0 * 256.0 - std::f32::consts::PI * 120.0 * 120.0;
        assert!((keyed / outside - 1.0).abs() < 0.02, "{keyed} of {outside}");
        assert_eq!(badge.pixels[..3], KEY);
    }

    #[test]
    fn ferry_is_as_large_as_it_says() {
        let ferry = ferry();
        assert_eq!((ferry.width, ferry.height, ferry.pixels.len()), (1024, 768, 1024 * 768 * 4));
    }
}
