/** The series that every process samples: CPU, memory, and how busy its event loop is. */
import {
  type EventLoopUtilization,
  type IntervalHistogram,
  monitorEventLoopDelay,
} from 'node:perf_hooks';

export const PROCESS_SERIES = [
  'cpuPercent',
  'loopPercent',
  'loopDelayMs',
  'rssBytes',
  'heapBytes',
] as const;

/** The delay of the event loop is measured at this interval, while a page is open. */
const DELAY_RESOLUTION_MS = 20;

export class ProcessSampler {
  #cpuMicros = readCpuMicros();
  #utilization: EventLoopUtilization = performance.eventLoopUtilization();
  #delay: IntervalHistogram | undefined;

  /** Measuring the delay of the event loop takes a timer. */
  measureDelay(isOn: boolean): void {
    if (isOn === (this.#delay !== undefined)) return;
    this.#delay?.disable();
    this.#delay = isOn ? monitorEventLoopDelay({ resolution: DELAY_RESOLUTION_MS }) : undefined;
    this.#delay?.enable();
  }

  /** @returns the values of PROCESS_SERIES */
  sample(elapsedSeconds: number): number[] {
    const cpuMicros = readCpuMicros();
    const cpuPercent = (cpuMicros - this.#cpuMicros) / elapsedSeconds / 10_000;
    this.#cpuMicros = cpuMicros;
    const utilization = performance.eventLoopUtilization();
    const { utilization: busy } = performance.eventLoopUtilization(utilization, this.#utilization);
    this.#utilization = utilization;
    const { heapUsed } = process.memoryUsage();
    return [cpuPercent, 100 * busy, this.#takeDelayMs(), process.memoryUsage.rss(), heapUsed];
  }

  /** The 99th percentile since the last sample, without the interval itself. */
  #takeDelayMs(): number {
    const delay = this.#delay;
    if (delay === undefined || delay.count === 0) return Number.NaN;
    const delayMs = delay.percentile(99) / 1e6 - DELAY_RESOLUTION_MS;
    delay.reset();
    return Math.max(0, delayMs);
  }
}

function readCpuMicros(): number {
  const { user, system } = process.cpuUsage();
  return user + system;
}
