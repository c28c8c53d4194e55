"""Claims, interview cards and quizzes."""
