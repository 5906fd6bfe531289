/**
 * Records the profile of a request. Its steps in the engine and at shards are the spans that a
 * tracer would get: each layer that makes spans can make steps.
 */
import type { ErrorCode } from '../core/errors.ts';
import type { ProfileStages, ProfileStep, RequestProfile } from '../core/request-profile.ts';
import type { TraceAttributes, TraceSpan } from '../core/trace-span.ts';
import { type Clock, toUnixMs } from './clock.ts';

/** A profile is one header: clients refuse long ones. */
const STEPS_MAX = 64;
const ATTRIBUTE_PREFIX = 'hypercube.';
/** The answer says it itself. */
const HIDDEN_ATTRIBUTES = ['version'];

export class ProfileRecorder {
  readonly clock: Clock;
  /** The request as a span; its children become steps. */
  readonly span: TraceSpan;
  readonly #startMs: number;
  readonly #steps: ProfileStep[] = [];
  #dropped = 0;

  /** @param startMs when the request arrived, on the scale of `clock` */
  constructor(clock: Clock, startMs: number) {
    this.clock = clock;
    this.#startMs = startMs;
    this.span = new StepSpan(this);
  }

  /** Adds a step, with its start and end on the scale of the clock. */
  addStep(name: string, fromMs: number, toMs: number, attributes: TraceAttributes = {}): void {
    if (this.#steps.length >= STEPS_MAX) {
      this.#dropped++;
      return;
    }
    const times = { atUs: toMicros(fromMs - this.#startMs), us: toMicros(toMs - fromMs) };
    this.#steps.push({ ...attributes, name, ...times });
  }

  finish(stages: ProfileStages): RequestProfile {
    return {
      startMs: Math.round(1_000 * toUnixMs(this.#startMs)) / 1_000,
      totalUs: toMicros(this.clock.nowMs() - this.#startMs),
      stages,
      steps: this.#steps.toSorted((a, b) => a.atUs - b.atUs),
      ...(this.#dropped > 0 && { droppedSteps: this.#dropped }),
    };
  }
}

/** A span that becomes a step of a profile when it ends; it is never sent anywhere. */
class StepSpan implements TraceSpan {
  readonly traceparent = undefined;
  readonly #recorder: ProfileRecorder;
  /** Undefined for the request itself, which is no step of its profile. */
  readonly #name: string | undefined;
  readonly #startMs: number;
  #attributes: TraceAttributes;

  constructor(recorder: ProfileRecorder, name?: string, attributes: TraceAttributes = {}) {
    this.#recorder = recorder;
    this.#name = name;
    this.#attributes = attributes;
    this.#startMs = recorder.clock.nowMs();
  }

  startChild(name: string, kind: 'internal' | 'client', attributes: TraceAttributes): TraceSpan {
    return new StepSpan(this.#recorder, kind === 'client' ? 'shard' : name, attributes);
  }

  addLink(): void {}

  setAttributes(attributes: TraceAttributes): void {
    this.#attributes = { ...this.#attributes, ...attributes };
  }

  end(code: ErrorCode | 'OK'): void {
    if (this.#name === undefined) return;
    const recorder = this.#recorder;
    const attributes = { ...shortenNames(this.#attributes), ...(code !== 'OK' && { code }) };
    recorder.addStep(this.#name, this.#startMs, recorder.clock.nowMs(), attributes);
  }
}

function shortenNames(attributes: TraceAttributes): TraceAttributes {
  return Object.fromEntries(
    Object.entries(attributes).flatMap(([name, value]) => {
      const short = name.slice(ATTRIBUTE_PREFIX.length);
      const isShown = name.startsWith(ATTRIBUTE_PREFIX) && !HIDDEN_ATTRIBUTES.includes(short);
      return isShown ? [[short, value] as const] : [];
    }),
  );
}

function toMicros(ms: number): number {
  return Math.max(0, Math.round(1_000 * ms));
}
