// The cells of torch.nn and their gates, in torch.nn's order. CELL, by a macro, picks the cell.
#pragma once

enum Cell { RNN_TANH, RNN_RELU, LSTM, GRU };
constexpr int GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1;

// Numbers of gates; of another cell's they are within bounds, in code that does not run.
enum LstmGate { LSTM_I, LSTM_F = 1 % GATES, LSTM_G = 2 % GATES, LSTM_O = 3 % GATES };
enum GruGate { GRU_R, GRU_Z = 1 % GATES, GRU_N = 2 % GATES };
enum { GRU_EXTRA = 3 };  // index after GRU's gates: W_hn h + b_hn where it is saved, the bias b_hn, W_in x among sums
