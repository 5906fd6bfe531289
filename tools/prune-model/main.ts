#!/usr/bin/env node
/** `prune-model`: from a trained model to a pruned graph and its tables. */
import { run } from './cli.ts';

process.exitCode = await run();
