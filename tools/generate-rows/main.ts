#!/usr/bin/env node
/** generate-rows: labelled Criteo-format rows whose true click probability is known. */
import { run } from './cli.ts';

process.exitCode = await run(process.argv.slice(2));
