/** Prunes the Paddle models of a test. */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { CubeError } from '../../../../lib/core/errors.ts';
import { JsonReader } from '../../../../lib/core/json.ts';
import { decodeNpy } from '../../../../lib/core/npy.ts';
import { readSlotSpec, type SlotSpec } from '../../../../lib/core/slots.ts';
import type { Program } from '../../../../tools/prune-model/paddle/program.ts';
import { findColumnOps } from '../../../../tools/prune-model/paddle/program-graph.ts';
import { readProgram } from '../../../../tools/prune-model/paddle/program-reader.ts';
import { type PruneRequest, pruneModel } from '../../../../tools/prune-model/prune.ts';
import type { Report } from '../../../../tools/prune-model/report.ts';
import { type ModelFiles, writeModel } from './paddle-builder.ts';
import { PruneHarness } from './prune-harness.ts';

export interface PrunedProgram {
  readonly report: Report;
  readonly spec: SlotSpec;
  readonly program: Program;
  readonly bytes: Uint8Array;
  /** Names of feeds and fetches, by column. */
  readonly feeds: readonly string[];
  readonly fetches: readonly string[];
  readonly ops: readonly string[];
}

export class PaddleHarness extends PruneHarness {
  #models = 0;

  writeModel(files: ModelFiles, layout?: 'separate' | 'combined' | 'pdmodel'): string {
    this.#models++;
    return writeModel(this.path(`model${this.#models}`), files, layout);
  }

  /**
   * Prunes to the output folder, replacing an earlier one; in this process, so that many can be
   * tried.
   */
  async pruneTo(model: string, options: Options = {}): Promise<Report> {
    rmSync(this.output, { recursive: true, force: true });
    const report = await pruneModel(this.#request(model, options));
    assert.ok(report !== undefined);
    return report;
  }

  async pruneProgram(model: string, options: Options = {}): Promise<PrunedProgram> {
    const report = await this.pruneTo(model, options);
    const name = existsSync(join(this.output, '__model__')) ? '__model__' : 'ctr.pdmodel';
    const bytes = new Uint8Array(this.file(name));
    const program = readProgram(bytes, name);
    const names = (type: 'feed' | 'fetch'): string[] => {
      const columns = findColumnOps(program, type);
      assert.deepEqual(
        columns.map(({ column }) => column),
        columns.map((_, i) => i),
      );
      return columns.map((column) => column.name);
    };
    const spec = readSlotSpec(JsonReader.parse(String(this.file('slots.json')), 'slots.json'));
    const ops = program.blocks[0]!.ops.map(({ type }) => type);
    return {
      report,
      spec,
      program,
      bytes,
      ops,
      feeds: names('feed'),
      fetches: names('fetch'),
    };
  }

  file(name: string): Buffer {
    return readFileSync(join(this.output, name));
  }

  npy(name: string): { readonly shape: readonly number[]; readonly values: readonly number[] } {
    const { shape, data } = decodeNpy(this.file(join('tables', name)), name);
    return { shape, values: Array.from(data, Number) };
  }

  /**
   * It must be refused in one line, and nothing may change on the disk. @param status the command's
   * exit code
   */
  async expectModelRefusal(model: string, status: number, options: Options = {}): Promise<string> {
    const before = this.snapshot();
    const error = await pruneModel(this.#request(model, { force: true, ...options })).then(
      () => assert.fail('it was pruned'),
      (reason: unknown) => CubeError.from(reason),
    );
    assert.equal(EXIT_CODES[error.code] ?? 1, status, error.message);
    assert.doesNotMatch(error.message, /\n/);
    assert.deepEqual(this.snapshot(), before);
    return error.message;
  }

  #request(model: string, options: Options): PruneRequest {
    const { output } = this;
    const usual = { features: undefined, samples: 64, force: false, dryRun: false };
    return { model, output, inProcess: true, ...usual, ...options };
  }
}

type Options = Partial<PruneRequest>;

const EXIT_CODES: Readonly<Record<string, number>> = { CONFLICT: 2, UNSUPPORTED: 4, CORRUPT: 5 };
